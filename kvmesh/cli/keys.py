"""Keys that are pressed on the terminal, without Return."""

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def single_keys() -> Iterator[None]:
    """Keys come as they are pressed, and are not shown, until the block is left. Ctrl-C stays what
    it is. Nothing happens where the input is no terminal.
    """
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def pressed(within: float) -> str:
    """The next keys, "" if there are none within so many seconds, or none can come."""
    if not sys.stdin.isatty():
        select.select([], [], [], within)
        return ""
    keyboard = sys.stdin.fileno()
    ready, _, _ = select.select([keyboard], [], [], within)
    return os.read(keyboard, 64).decode(errors="replace") if ready else ""
