"""`kvmesh bench engine`: beside what a user would pick instead."""

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvmesh.cli.bench.report import Json, Report, tell
from kvmesh.cli.errors import fail

if TYPE_CHECKING:
    from bench.contestants import Contestant
    from bench.engine import Comparison
    from kvmesh.cli.fleet import Fleet
    from kvmesh.cli.serve_config import ServeConfig

KV_BYTES = 2 << 30
ALONE_KV_BYTES = 1 << 29
MAX_MODEL_LEN = 8192


def engine(
    peer: Annotated[
        list[str] | None, typer.Option(help="Measure this one too: vllm, hf. May be repeated.")
    ] = None,
    peers: Annotated[
        Path | None, typer.Option(help="Directory with the peers and the model for them.")
    ] = None,
    url: Annotated[
        list[str] | None,
        typer.Option(help="NAME=URL of a running OpenAI-compatible server that serves NAME."),
    ] = None,
    quick: Annotated[bool, typer.Option(help="Everything once, instead of three times.")] = False,
    as_json: Json = False,
) -> None:
    """Speed, cache and memory of one node, beside other engines in the same run.

    Examples:

        kvmesh bench engine --quick
        kvmesh bench engine --peer vllm --peer hf --peers ./peers
        kvmesh bench engine --url other=http://127.0.0.1:8111 --json

    One compute thread each, bfloat16, 2 GiB of KV, the same HTTP client and prompts for all, one
    after the other in turns. kvmesh is measured behind its router, and its engine alone as well.
    """
    if peer and peers is None:
        raise typer.BadParameter("say with --peers in which directory they are")
    tell(measured(peer or [], peers, url or [], 1 if quick else 3), as_json=as_json)


def measured(names: list[str], directory: Path | None, urls: list[str], repetitions: int) -> Report:
    """Of a fleet of its own, beside the peers `names` in `directory` and the servers at `urls`."""
    from bench.peers import ONE_THREAD
    from kvmesh.cli.bench.own_fleet import on_own_fleet
    from kvmesh.cli.serve_config import ServeConfig

    os.environ.update(ONE_THREAD)  # of the fleet's processes, and of what runs in this one

    def measure(config: ServeConfig, fleet: "Fleet") -> "Comparison":
        try:
            return _measure(config, fleet, names, directory, urls, repetitions)
        except RuntimeError as error:
            fail(str(error))

    config = ServeConfig(nodes=1, kv_cache_bytes=KV_BYTES, max_model_len=MAX_MODEL_LEN)
    return _report(on_own_fleet(measure, config))


def _measure(
    config: "ServeConfig",
    fleet: "Fleet",
    names: list[str],
    directory: Path | None,
    urls: list[str],
    repetitions: int,
) -> "Comparison":
    from bench.contestants import Served
    from bench.engine import OURS, compare, fill_pool
    from bench.openai_client import OpenAiClient
    from bench.peers import peer
    from cache_node.model.source import find_model
    from kvmesh.cli.ports import free_ports

    model = find_model(config.model, config.cache_dir, lambda _stage, _fraction: None)
    pids = [child.pid for child in fleet.children if child.pid is not None]
    ours = Served(OURS, OpenAiClient(config.http_url, fleet.model), pids)
    with ExitStack() as stack:
        contestants: list[Contestant] = [ours, _alone(model, stack)]
        for name, port in zip(names, free_ports("127.0.0.1", len(names)), strict=True):
            assert directory is not None
            _say(f"starting {name}")
            contestants.append(
                stack.enter_context(peer(name, directory, port, KV_BYTES, MAX_MODEL_LEN))
            )
        for name, _, url in (each.partition("=") for each in urls):
            contestants.append(Served(name, OpenAiClient(url, name), []))
        _say("filling the pool")
        fill_pool(ours, int(fleet.nodes[0].ready["kv_cache_tokens"]))
        weights = sum(path.stat().st_size for path in model.glob("*.safetensors"))
        return compare(contestants, weights, repetitions, _say)


def _alone(model: Path, stack: ExitStack) -> "Contestant":
    from bench.contestants import Alone
    from bench.engine import fill_pool
    from bench.in_process import InProcessEngine
    from cache_node.config import NodeConfig
    from cache_node.load_executor import load_executor
    from cache_node.scheduling import make_scheduler
    from kvmesh.tokenizer import Tokenizer

    config = NodeConfig(kv_cache_bytes=ALONE_KV_BYTES)
    executor = load_executor(config, model, lambda _stage, _fraction: None)
    engine = InProcessEngine(
        make_scheduler(config, executor), executor, Tokenizer.from_directory(model)
    )
    alone = Alone(stack.enter_context(engine.running()))
    fill_pool(alone, executor.num_blocks * config.block_size)
    return alone


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _report(comparison: "Comparison") -> Report:
    from bench.engine import OURS
    from bench.workloads import MEASURES

    others = [name for name in comparison.figures if name != OURS]
    rows = []
    for measure in MEASURES:
        row = [measure.label]
        for name in (OURS, *others):
            spread = comparison.figures[name].get(measure.name)
            row.append("–" if spread is None else _shown(spread.median * measure.scale))
        for name in others:
            ratio = comparison.ratio(measure.name, name)
            row.append("–" if ratio is None else f"{ratio:.2f}×")
        rows.append(row)
    return Report(
        title="One node, one compute thread, bfloat16, 2 GiB of KV",
        columns=("", OURS, *others, *(f"÷ {name}" for name in others)),
        rows=rows,
        data=comparison.as_json(),
        goals=comparison.goals,
        notes=[_bound(comparison)],
    )


def _bound(comparison: "Comparison") -> str:
    speed, weights = comparison.bandwidth / 1e9, comparison.weight_bytes / 1e6
    limit = f"{weights:.0f} MB of weights allow one stream {comparison.bound:.1f} tok/s"
    return f"One thread reads {speed:.1f} GB/s: {limit}."


def _shown(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"
