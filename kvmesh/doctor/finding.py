"""What a check has to say."""

from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """Also the exit code of the command."""

    FINE = 0
    ADVICE = 1
    SERIOUS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str
    where: str  # name of the node, or address of the router
    level: Level
    finding: str
    evidence: str  # metrics with their values
    change: str = ""  # the flag with its new value, or what else to do; empty when all is fine

    def as_json(self) -> dict[str, str]:
        return {
            "check": self.check,
            "where": self.where,
            "level": self.level.name.lower(),
            "finding": self.finding,
            "evidence": self.evidence,
            "change": self.change,
        }
