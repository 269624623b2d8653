"""Text of others keeps its letters and loses its commands."""

import os
import pty
import subprocess
import sys

import pytest

from kvmesh.printable import harmless_lines, printable

EVIL = "a\x1b]0;title\x07b\x9bc\rd"
SHOWN = r"a\x1b]0;title\x07b\x9bc\rd"
WRITINGS = "naïve 東京\n\tשלום\u200f مرحبا\u200c 👩\u200d💻\n"


def test_one_line_has_no_commands_and_no_ends():
    assert printable("plain") == "plain"
    assert printable(f"{EVIL}\n\u202e") == SHOWN + r"\n\u202e"


def test_lines_keep_all_writings_and_lose_commands():
    assert harmless_lines(WRITINGS) == WRITINGS
    assert harmless_lines(EVIL) == SHOWN


@pytest.mark.parametrize(("terminal", "shown"), [(True, SHOWN), (False, EVIL)])
def test_a_models_text_commands_no_terminal_and_is_whole_in_a_file(terminal, shown):
    reader, writer = pty.openpty() if terminal else os.pipe()
    script = f"from kvmesh.cli.streamed import show; show({EVIL!r})"
    subprocess.run([sys.executable, "-c", script], stdout=writer, check=True, timeout=60)
    assert os.read(reader, 4096).decode() == shown
    os.close(writer)
    os.close(reader)
