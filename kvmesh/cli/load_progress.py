"""What a person sees while a load runs: a moving table on a terminal, now and then a line else."""

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from bench.figures import quantile

if TYPE_CHECKING:
    from bench.load.generator import Generator
    from bench.load.vitals import Vitals

LINE_SECONDS = 10.0


class LoadProgress:
    """Call it with the state whenever there may be news. Writes to stderr."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._said = float("-inf")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def __call__(self, generator: "Generator", vitals: "Vitals") -> None:
        if self._console.is_terminal:
            self._live.update(self._table(generator, vitals), refresh=True)
        elif time.monotonic() - self._said >= LINE_SECONDS:
            self._said = time.monotonic()
            cells = _cells(generator, vitals)
            line = " · ".join(f"{name} {value}" for name, value in cells.items())
            self._console.print(line, soft_wrap=True)

    def _table(self, generator: "Generator", vitals: "Vitals") -> Table:
        table = Table(title=self._name, title_justify="left", box=None, pad_edge=False)
        cells = _cells(generator, vitals)
        for name in cells:
            table.add_column(name, justify="right")
        table.add_row(*cells.values())
        return table


def _cells(generator: "Generator", vitals: "Vitals") -> dict[str, str]:
    tally, now = generator.tally, max(generator.now(), 1e-9)
    ttfts = sorted(tally.latest_ttfts)
    return {
        "s": f"{now:.0f}",
        "answered": f"{tally.answered}/{len(generator.plan.turns)}",
        "in flight": str(tally.in_flight),
        "failed": str(tally.failed),
        "TTFT p50 ms": f"{1e3 * quantile(ttfts, 0.5):.0f}" if ttfts else "–",
        "output tok/s": f"{tally.output_tokens / now:.1f}",
        "own CPU": f"{vitals.cpu:.0%}",
    }
