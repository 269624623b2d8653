"""Where commands print tables."""

import sys

from rich.console import Console

WIDE = 160  # columns of what is no terminal: nothing is to be cut there


def console_for_tables() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
