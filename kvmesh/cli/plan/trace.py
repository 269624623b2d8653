"""What a trace says about the size of the pool."""

from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from bench.miss_ratio import MissRatioCurve, miss_ratio_curve
from bench.trace import read_any_trace
from cache_node.plan.plan import Plan

FLAT = 0.95
"""A curve is flat where a pool hits this share of what one without end would."""
STEPS = 9


@dataclass(frozen=True, slots=True)
class TracePlan:
    """`flat` is the smallest pool, in blocks, from which on more memory brings little; `running` is
    what the requests hold that are served meanwhile.
    """

    requests: int
    curve: MissRatioCurve
    flat: int
    running: int

    @property
    def recommended(self) -> int:
        return self.flat + self.running

    @property
    def sizes(self) -> list[int]:
        """Pools to show: doubled up to one that holds everything."""
        return [self.curve.distinct >> step for step in reversed(range(STEPS))]

    def as_json(self) -> dict[str, Any]:
        curve = self.curve
        return {
            "requests": self.requests,
            "prompt_tokens": curve.prompt_tokens,
            "distinct_blocks": curve.distinct,
            "points": [{"blocks": n, "hit_share": curve.hit_share(n)} for n in self.sizes],
            "best_hit_share": curve.hit_share(curve.distinct),
            "flat_blocks": self.flat,
            "flat_hit_share": curve.hit_share(self.flat),
            "running_blocks": self.running,
            "recommended_blocks": self.recommended,
        }


def plan_trace(path: Path, plan: Plan, concurrency: int) -> TracePlan:
    """Raises OSError, and ValueError that names the field."""
    requests = read_any_trace(path)
    if not requests:
        raise ValueError(f"trace: {path} has no requests")
    curve = miss_ratio_curve(requests, plan.layout.block_size)
    each = mean(request.prompt_tokens + request.output_tokens for request in requests)
    running = concurrency * plan.layout.blocks_for(int(each))
    return TracePlan(len(requests), curve, curve.size_for(FLAT), running)


def draw_trace(found: TracePlan, path: Path, title: str) -> None:
    """As PNG. Raises ImportError without matplotlib."""
    from bench.plotting import COLOURS, GREY, headless_pyplot, save, style

    curve = found.curve
    sizes = [max(1, curve.distinct * i // 400) for i in range(1, 441)]
    plt = headless_pyplot()
    with plt.rc_context(style()):
        figure, ax = plt.subplots(figsize=(8, 4.4))
        missed = [100 * (1 - curve.hit_share(size)) for size in sizes]
        ax.plot(sizes, missed, color=COLOURS[0], linewidth=2)
        ax.axvline(found.flat, color=GREY, linestyle="--", label=f"flat from {found.flat:,} on")
        ax.set(xlabel="blocks of the pool", ylabel="% of prompt tokens missed", xlim=(0, None))
        ax.set_ylim(0, 100)
        ax.legend()
        save(figure, path, title)
