"""How long a node may take, stage by stage."""

from dataclasses import dataclass
from enum import Enum


class Stage(Enum):
    """What a call is waiting for."""

    CONNECT = "take the request"
    FIRST_TOKEN = "send a first token"
    TOKENS = "send more tokens"


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that each stage may take. The whole has the request's deadline."""

    connect: float
    first_token: float
    tokens: float

    def of(self, stage: Stage) -> float:
        match stage:
            case Stage.CONNECT:
                return self.connect
            case Stage.FIRST_TOKEN:
                return self.first_token
            case Stage.TOKENS:
                return self.tokens
