"""What a load leaves behind: result.json, requests.csv, report.html and its plots as PNG."""

import json
from pathlib import Path

from bench.load.page import make_page
from bench.load.plots import draw_plots
from bench.load.run import Run
from bench.load.summary import Summary, summarise
from bench.load.table import write_csv


def write_report(run: Run, directory: Path) -> Summary:
    """Figures first: they are there even if the plots are not waited for. Raises OSError."""
    summary = summarise(run)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "result.json").write_text(json.dumps(summary, indent=1))
    write_csv(directory / "requests.csv", run.generator.outcomes)
    missing = []
    if summary["fleet"] is None:
        why = summary["fleet_missing"] or "the run was too short for a look"
        missing.append(f"No plot of KV usage and hit rate: {why}.")
    try:
        plots = draw_plots(summary, directory)
    except ImportError:
        plots = []
        missing.append("No plots: they need matplotlib, pip install 'kvmesh[load]'.")
    (directory / "report.html").write_text(make_page(summary, plots, missing))
    return summary
