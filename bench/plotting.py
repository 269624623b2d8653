"""How all plots look. They need matplotlib."""

from pathlib import Path
from textwrap import fill
from typing import Any

COLOURS = ("#2563eb", "#d97706", "#059669", "#b91c1c", "#7c3aed", "#0891b2", "#4b5563", "#be185d")
GREY = "#6b7280"
FOOTER_WIDTH = 110  # characters


def style() -> Any:
    """For `pyplot.rc_context`."""
    return {
        "font.size": 10,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#e5e7eb",
        "axes.edgecolor": "#9ca3af",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10.5,
        "legend.frameon": False,
        "figure.constrained_layout.use": True,
    }


def headless_pyplot() -> Any:
    """pyplot, for files alone. Raises ImportError without matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    return plt


def save(figure: Any, path: Path, title: str, footer: str = "") -> None:
    """As PNG; the figure is closed. `footer` is small print below: machine, commit, command."""
    figure.suptitle(title, fontsize=12, fontweight="bold")
    if footer:
        figure.supxlabel(fill(footer, FOOTER_WIDTH), fontsize=7, color=GREY)
    # Where a name has no ending, matplotlib would add one, and write beside a directory.
    figure.savefig(path, dpi=110, format=path.suffix[1:] or "png")
    headless_pyplot().close(figure)
