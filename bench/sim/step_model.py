"""How long a step takes: a sum over what is in it, with constants that were measured."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from cache_node.step_plan import Row

PROFILES = Path(__file__).parent / "profiles"
CONSTANTS = ("step", "prefill_token", "prefill_read", "decode_row", "decode_read")


class Shape(NamedTuple):
    """What a step computes. A token reads the KV of all tokens before it: `…_reads` are sums."""

    prefill_tokens: int = 0
    prefill_reads: int = 0
    decode_rows: int = 0
    decode_reads: int = 0


@dataclass(frozen=True, slots=True)
class StepModel:
    """Seconds of a step, and of each of what it computes.

    step + prefill_token · tokens + prefill_read · reads + decode_row · rows + decode_read · reads
    """

    step: float
    prefill_token: float
    prefill_read: float
    decode_row: float
    decode_read: float

    def seconds(self, shape: Shape) -> float:
        return (
            self.step
            + self.prefill_token * shape.prefill_tokens
            + self.prefill_read * shape.prefill_reads
            + self.decode_row * shape.decode_rows
            + self.decode_read * shape.decode_reads
        )

    def decoding(self, rows: int, reads: int, steps: int) -> list[float]:
        """Seconds of each of so many steps that give each of `rows` a token; `reads` is what the
        first one reads.
        """
        rest = self.step + self.decode_row * rows
        return [rest + self.decode_read * read for read in range(reads, reads + rows * steps, rows)]


@dataclass(frozen=True, slots=True)
class Profile:
    """A step model, and where its constants are from. `path`: seconds that a request is on its way
    through router and network, there and back.
    """

    model: StepModel
    path: float
    about: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        return {"seconds": asdict(self.model), "path_seconds": self.path, "about": dict(self.about)}

    @classmethod
    def read(cls, path: Path) -> "Profile":
        """Raises OSError, and ValueError for a file that is none."""
        try:
            fields = json.loads(path.read_text())
            constants = {name: float(fields["seconds"][name]) for name in CONSTANTS}
            profile = cls(StepModel(**constants), float(fields["path_seconds"]), fields["about"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a profile of step times: {error!r}") from error
        wrong = [v for v in (*constants.values(), profile.path) if not (v >= 0 and isfinite(v))]
        if wrong or profile.model.step <= 0:
            raise ValueError(f"{path}: seconds must be at least 0, and those of a step above it")
        return profile


def profile_named(name: str) -> Path:
    """The file of a profile that comes with kvmesh, or `name` itself when it is another."""
    own = PROFILES / f"{name}.json"
    return own if own.is_file() else Path(name)


def shape_of(rows: Iterable[Row]) -> Shape:
    """A row of one token is a decode, one of more is a chunk of a prompt."""
    tokens = reads = decodes = decode_reads = 0
    for row in rows:
        count = len(row.token_ids)
        if count == 1:
            decodes += 1
            decode_reads += row.start + 1
        else:
            tokens += count
            reads += count * row.start + count * (count + 1) // 2
    return Shape(tokens, reads, decodes, decode_reads)
