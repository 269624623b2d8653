"""A fleet as one screen of text, as large as the terminal allows."""

import re
from collections.abc import Sequence
from math import inf

from rich.console import Group, OverflowMethod, RenderableType
from rich.table import Table
from rich.text import Text

from kvmesh.cli.block_bar import AMOUNT, bar, blocks_of, total
from kvmesh.printable import printable
from kvmesh.v1.fleet_pb2 import EndedRequest, NodeHealth, NodeStatus, OverviewResponse

STATES = {"up": "green", "draining": "yellow", "connecting": "yellow", "down": "red"}
LEAST_REQUESTS = 4  # lines for which a table of requests is worth its head
WIDE, MIDDLE = 110, 80  # columns from which on there is room for all, and for most


def view(
    overview: OverviewResponse, status: Text, width: int, height: int | None
) -> RenderableType:
    """`height` in lines, None for as many as there is to show."""
    nodes = sorted(overview.nodes, key=_calm)
    head = [_title(overview, status), *_rates(overview, width), _memory(nodes, width), Text()]
    room = inf if height is None else max(2, height - len(head) - 1)
    shown = nodes if len(nodes) <= room else nodes[: int(room) - 1]
    parts: list[RenderableType] = [*head, _nodes(shown, width)]
    if len(shown) < len(nodes):
        parts.append(Text(f"… and {len(nodes) - len(shown)} more nodes", style="dim"))
    left = int(min(room - len(nodes) - 2, len(overview.requests)))
    if left >= min(LEAST_REQUESTS, len(overview.requests)) and overview.requests:
        parts += [Text(), _requests(overview.requests[:left], width)]
    return Group(*parts)


def _title(overview: OverviewResponse, status: Text) -> Text:
    about = (overview.model or "no model yet", overview.policy, overview.version)
    told = printable(" · ".join(about))
    title = Text.assemble(("kvmesh ", "bold"), status, (f"  {told}", "dim"))
    title.no_wrap, title.overflow = True, "ellipsis"
    return title


def _rates(overview: OverviewResponse, width: int) -> list[Text]:
    """As many lines as it takes."""
    rates = overview.rates
    up = sum(_health(node) == "up" for node in overview.nodes)
    waiting = [
        f"{each.waiting} {each.priority} ({duration(each.oldest_us)})"
        for each in overview.queue
        if each.waiting
    ]
    told = (
        ("tokens/s", f"{rates.output_tokens:,.0f}"),
        ("prompt tokens/s", f"{rates.prompt_tokens:,.0f}"),
        ("cache hits", share(rates.hit_tokens, rates.prompt_tokens)),
        ("in flight", str(overview.in_flight)),
        ("queue", ", ".join(waiting) or "0"),
        ("nodes up", f"{up} of {len(overview.nodes)}"),
    )
    lines = [Text()]
    for name, value in told:
        pair = Text.assemble((f"{name} ", "dim"), (value, "bold"), "   ")
        if len(lines[-1]) + len(pair) > width + 3:
            lines.append(Text())
        lines[-1].append_text(pair)
    return lines


def _memory(nodes: Sequence[NodeStatus], width: int) -> Text:
    there = [blocks_of(node) for node in nodes if _health(node) in ("up", "draining")]
    blocks = total(there)
    words = Text.assemble(("KV memory ", "dim"))
    for name, amount in blocks.parts():
        style = AMOUNT[name]
        words.append_text(Text.assemble(("■ ", style), f"{name} {amount:,} "))
    line = Text.assemble(words, bar(blocks, max(8, width - len(words) - 1)))
    line.no_wrap = True
    return line


def _nodes(nodes: Sequence[NodeStatus], width: int) -> Table:
    table = Table(box=None, pad_edge=False, expand=True)
    table.add_column("node", no_wrap=True)
    table.add_column("state", no_wrap=width >= MIDDLE)
    swap = width >= WIDE and any(blocks_of(node).swap_size for node in nodes)
    room = max(6, width // (4 if width >= MIDDLE else 5))
    table.add_column("blocks", no_wrap=True, min_width=room)
    numbers = ["run", "wait", "tok/s", "hits"]
    if swap:
        numbers.insert(0, "swap")
    if width >= MIDDLE:
        numbers[:0] = ["held", "cached", "free"]
    if width >= WIDE:
        numbers.append("now")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    for node in nodes:
        table.add_row(*_node_cells(node, width, room, swap))
    return table


def _node_cells(node: NodeStatus, width: int, room: int, swap: bool) -> list[RenderableType]:
    blocks, load, rates = blocks_of(node), node.load, node.rates
    health = _health(node)
    gone = health not in ("up", "draining")
    state = Text(health, style=STATES.get(health, "red"), overflow="ellipsis")
    if node.breaker not in ("", "closed"):
        state.append(f" breaker {node.breaker}", style="yellow")
    if node.detail and width >= WIDE:
        state.append(f" {printable(node.detail[: width // 6])}", style="dim")
    cells: list[RenderableType] = [Text(printable(node.name or node.address)), state]
    cells.append(Text("░" * room, style="dim") if gone else bar(blocks, room))
    if width >= MIDDLE:
        cells += [f"{amount:,}" for _, amount in blocks.parts()]
    if swap:
        cells.append(f"{blocks.swap_used:,}/{blocks.swap_size:,}")
    cells += [str(load.running), str(load.waiting), f"{rates.output_tokens:,.0f}"]
    cells.append(share(load.hit_tokens, load.queried_tokens))
    if width >= WIDE:
        cells.append(share(rates.hit_tokens, rates.prompt_tokens))
    return cells


def _requests(requests: Sequence[EndedRequest], width: int) -> Table:
    cells = [_request_cells(each) for each in requests]
    columns = {name: least for name, (least, _) in cells[0].items() if width >= least}
    table = Table(box=None, pad_edge=False, expand=True)
    for name in columns:
        words = name in ("last requests", "status", "node", "why")
        table.add_column(name, justify="left" if words else "right", no_wrap=True)
    for row in cells:
        table.add_row(*(row[name][1] for name in columns))
    return table


def _request_cells(request: EndedRequest) -> dict[str, tuple[int, Text]]:
    """By the column's name: the least width of a terminal that has room for it, and the text."""
    route, summary = request.route, request.summary
    cached = summary.usage.cached
    found = cached.gpu + cached.cpu + cached.remote
    told = bool(summary.node)
    moved = told and bool(route.node) and summary.node != route.node
    ok = request.code == "OK"
    return {
        "last requests": (0, _cell(request.request_id or "–", overflow="ellipsis")),
        "status": (0, _cell(request.code, style="green" if ok else "red")),
        "node": (0, _cell(f"{route.node}→{summary.node}" if moved else route.node or "–")),
        "why": (140, _cell(request.error or route.reason, style="dim", overflow="ellipsis")),
        "prompt": (0, _cell(f"{route.prompt_tokens:,}" if route.node else "–")),
        "cached": (0, _cell(f"{found:,} {share(found, route.prompt_tokens)}" if told else "–")),
        "predicted": (WIDE, _cell(f"{route.predicted_cached_tokens:,}" if route.node else "–")),
        "queue": (MIDDLE, _cell(duration(route.queue_us + summary.queue_us))),
        "prefill": (WIDE, _cell(duration(summary.prefill_us))),
        "first": (MIDDLE, _cell(duration(request.ttft_us))),
        "total": (0, _cell(duration(request.total_us))),
        "resumed": (WIDE, _cell(str(request.resumes))),
    }


def _cell(text: str, style: str = "", overflow: OverflowMethod | None = None) -> Text:
    return Text(printable(text), style=style, overflow=overflow)


def _health(node: NodeStatus) -> str:
    return NodeHealth.Name(node.health).removeprefix("NODE_HEALTH_").lower()


def _calm(node: NodeStatus) -> tuple[bool, list[str | int]]:
    """Those that need a look come first, node-2 before node-10."""
    words = re.split(r"(\d+)", node.name)
    name = [int(word) if word.isdigit() else word for word in words]
    return _health(node) == "up" and node.breaker == "closed", name


def share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole > 0 else "–"


def duration(microseconds: float) -> str:
    ms = microseconds / 1000
    if ms == 0:
        return "–"
    if ms < 1000:
        return f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 60_000 else f"{ms / 60_000:.1f} min"
