"""The report as one HTML file that needs no other."""

from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from bench.load.measures import (
    CACHE,
    GENERATOR,
    LATENCIES,
    RATES,
    REQUESTS,
    Measure,
    Summary,
    caveats,
    counted_from,
    errors_of,
)

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #111827; max-width: 1080px; margin: 2em auto;
       padding: 0 1em; }
h1 { font-size: 1.5em; margin-bottom: .2em; } h2 { font-size: 1.1em; margin: 1.6em 0 .4em; }
.sub, footer { color: #4b5563; } footer { font-size: .85em; margin-top: 2em; }
.caveat { background: #fef2f2; border-left: 4px solid #b91c1c; padding: .5em .8em; margin: .5em 0; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .7em;
         margin: 1em 0; }
.card { background: #f3f4f6; border-radius: 6px; padding: .6em .8em; }
.card b { display: block; font-size: 1.35em; } .card span { color: #4b5563; font-size: .85em; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(330px, 1fr));
           gap: 0 2.5em; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25em .5em; border-bottom: 1px solid #e5e7eb; }
th { font-weight: 600; color: #374151; } th:first-child, td:first-child { text-align: left; }
td.text { text-align: left; color: #4b5563; overflow-wrap: anywhere; }
img { width: 100%; margin: .6em 0; } code { background: #f3f4f6; padding: .1em .3em; }
"""
HEADLINES = (
    Measure("TTFT p50", ("latency", "ttft", "p50"), "ms", 1e3),
    Measure("TTFT p99", ("latency", "ttft", "p99"), "ms", 1e3),
    Measure("ITL p50", ("latency", "itl", "p50"), "ms", 1e3),
    RATES[0],
    RATES[3],
    Measure("of prompt tokens cached", ("cache", "share"), "%", 100),
)


def make_page(summary: Summary, plots: Sequence[Path], missing: Sequence[str]) -> str:
    """`missing`: lines about what is not shown, and why."""
    body = [
        f"<h1>{escape(summary['name'])}</h1>",
        f'<p class="sub">{escape(_where(summary))}</p>',
        *(f'<p class="caveat">{escape(each)}</p>' for each in caveats(summary)),
        '<div class="cards">',
        *(_card(measure, summary) for measure in HEADLINES),
        "</div>",
        f"<p>{escape(_slo(summary))}</p>",
        *(_image(path) for path in plots),
        *(f'<p class="sub">{escape(line)}</p>' for line in missing),
        '<div class="columns"><div>',
        "<h2>Latency</h2>",
        _latency_table(summary),
        "<h2>Cache</h2>",
        _table(CACHE, summary),
        "</div><div>",
        "<h2>Throughput</h2>",
        _table((*REQUESTS, *RATES), summary),
        "<h2>The load generator itself</h2>",
        _table(GENERATOR, summary),
        "</div></div>",
        _nodes(summary),
        _errors(summary),
        f"<p>{escape(counted_from(summary))}</p>",
        _footer(summary),
    ]
    title = escape(f"kvmesh load: {summary['name']}")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _where(summary: Summary) -> str:
    config, requests = summary["config"], summary["requests"]
    target = config["target"] or f"a fleet of its own: {config['nodes']} nodes, {config['policy']}"
    return (
        f"{requests['sent']} requests in {summary['seconds']:.1f} s to {target} · "
        f"seed {config['seed']} · {summary['started']}"
    )


def _slo(summary: Summary) -> str:
    slo = summary["goodput"]["slo"]
    parts = [f"TTFT ≤ {slo['ttft'] * 1e3:g} ms", f"mean ITL ≤ {slo['itl'] * 1e3:g} ms"]
    if slo["e2e"] is not None:
        parts.append(f"end to end ≤ {slo['e2e'] * 1e3:g} ms")
    return f"Goodput counts requests with {', '.join(parts)}."


def _card(measure: Measure, summary: Summary) -> str:
    value = measure.show(measure.of(summary))
    return f'<div class="card"><b>{value}</b><span>{escape(measure.label)}</span></div>'


def _image(path: Path) -> str:
    data = b64encode(path.read_bytes()).decode()
    return f'<img alt="{path.stem}" src="data:image/png;base64,{data}">'


def _rows(head: Iterable[str], rows: Iterable[Sequence[str]], text: int | None = None) -> str:
    """`text`: the column that is prose."""
    header = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = (
        "".join(
            f'<td class="text">{escape(cell)}</td>' if place == text else f"<td>{escape(cell)}</td>"
            for place, cell in enumerate(row)
        )
        for row in rows
    )
    return f"<table><tr>{header}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _table(measures: Iterable[Measure], summary: Summary) -> str:
    return _rows(("", ""), ([each.label, each.show(each.of(summary))] for each in measures))


def _latency_table(summary: Summary) -> str:
    """A row a kind of latency, a column a share."""
    rows = [
        [LATENCIES[place].label.removesuffix(" p50")]
        + [each.show(each.of(summary)) for each in LATENCIES[place : place + 3]]
        for place in range(0, len(LATENCIES), 3)
    ]
    return _rows(("", "p50", "p90", "p99"), rows)


def _nodes(summary: Summary) -> str:
    if summary["nodes"] is None:
        return '<p class="sub">The server does not say which node answers.</p>'
    names = ("requests", "prompt_tokens", "cached_tokens", "output_tokens")
    rows = (
        [name, *(f"{node[each]:,}" for each in names)]
        for name, node in summary["nodes"]["by_name"].items()
    )
    head = ("node", "requests", "prompt tokens", "of them cached", "output tokens")
    return f"<h2>Nodes</h2>{_rows(head, rows)}"


def _errors(summary: Summary) -> str:
    if not summary["errors"]:
        return "<p>No request failed.</p>"
    rows = ([name, f"{count:,}", said] for name, count, said in errors_of(summary))
    return f"<h2>Errors</h2>{_rows(('status', 'requests', 'one of them'), rows, text=2)}"


def _footer(summary: Summary) -> str:
    machine = " · ".join(f"{name}: {value}" for name, value in summary["machine"].items())
    command = f"<code>{escape(summary['command'])}</code>"
    return f"<footer>{command}<br>{escape(machine)}</footer>"
