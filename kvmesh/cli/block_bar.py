"""Where a node's blocks are, as a bar of text."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import accumulate

from rich.text import Text

from kvmesh.v1.fleet_pb2 import NodeStatus

# Told apart without colours too.
GLYPHS = {"held": "█", "cached": "▒", "free": "░"}
AMOUNT = {"held": "blue", "cached": "green", "free": "bright_black"}


@dataclass(frozen=True, slots=True)
class Blocks:
    """Of a node's pool by state, and of its swap space."""

    held: int = 0
    cached: int = 0
    free: int = 0
    swap_used: int = 0
    swap_size: int = 0

    def parts(self) -> Iterator[tuple[str, int]]:
        """The pool's, from left to right."""
        yield "held", self.held
        yield "cached", self.cached
        yield "free", self.free


def blocks_of(node: NodeStatus) -> Blocks:
    load = node.load
    used = load.cpu_held_blocks + load.cpu_cached_blocks
    return Blocks(
        held=max(0, node.num_blocks - load.free_blocks - load.evictable_blocks),
        cached=load.evictable_blocks,
        free=load.free_blocks,
        swap_used=used,
        swap_size=used + load.cpu_free_blocks,
    )


def total(all_blocks: Iterable[Blocks]) -> Blocks:
    """Of several nodes together."""
    found = list(all_blocks)
    return Blocks(**{f.name: sum(getattr(each, f.name) for each in found) for f in fields(Blocks)})


def bar(blocks: Blocks, width: int) -> Text:
    """`width` cells. Ends of parts are rounded, so that the parts fill the bar."""
    names, amounts = zip(*blocks.parts(), strict=True)
    whole = sum(amounts)
    if not whole:
        return Text(GLYPHS["free"] * width, style=AMOUNT["free"])
    ends = [round(width * end / whole) for end in accumulate(amounts)]
    drawn = Text()
    for name, start, end in zip(names, [0, *ends], ends, strict=False):
        drawn.append(GLYPHS[name] * (end - start), style=AMOUNT[name])
    return drawn
