"""A model's text on the terminal, as it comes."""

import sys

from kvmesh.printable import harmless_lines


def show(text: str) -> None:
    """Writes `text` at once: all of it, but to a terminal nothing that would command it."""
    sys.stdout.write(harmless_lines(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
