"""The commands that README and guide tell a reader to run, as they stand in the text."""

import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs/guide"
README = ROOT / "README.md"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_PROGRAMS = ("kvmesh", "make", "docker", "curl", "grpcurl", "pip", "python")


@dataclass(frozen=True, slots=True)
class Command:
    text: str
    file: str
    language: str  # sh or python

    def __str__(self) -> str:
        first = " ".join(self.text.split())
        return f"{self.file}: {first[:60]}"


def read_commands(path: Path) -> list[Command]:
    """What is in its blocks of sh, console and python, and the commands between backticks."""
    text, file = path.read_text(), str(path.relative_to(ROOT))
    found = [
        Command(each, file, "python" if language == "python" else "sh")
        for language, block in fences(text)
        for each in _of_block(language, block)
    ]
    spans = _SPAN.findall(without_fences(text))
    return found + [Command(span, file, "sh") for span in spans if _is_command(span)]


def fences(text: str) -> list[tuple[str, str]]:
    """Language and content of each fenced block."""
    return _FENCE.findall(text)


def without_fences(text: str) -> str:
    return _FENCE.sub("", text)


def english_documents() -> list[Path]:
    """Those whose commands are run; the Chinese ones have the same."""
    chapters = sorted(path for path in GUIDE.glob("*.md") if not path.name.endswith(".zh.md"))
    return [README, *chapters]


def each_once(commands: Iterable[Command]) -> list[Command]:
    """The first of those that say the same, comments apart."""
    found: dict[str, Command] = {}
    for each in commands:
        found.setdefault(_normal(each), each)
    return list(found.values())


def _of_block(language: str, block: str) -> Iterable[str]:
    if language == "sh":
        return _whole_commands(block.splitlines())
    if language == "console":
        prompts = [line for line in block.splitlines() if line.startswith(("$ ", "> "))]
        return _whole_commands([line[2:] for line in prompts])
    return [block] if language == "python" else []


def _whole_commands(lines: Iterable[str]) -> Iterator[str]:
    """Lines put together until a shell understands them."""
    pending = ""
    for line in lines:
        pending += line + "\n"
        if pending.strip() and not line.endswith("\\") and _is_whole(pending):
            yield pending.strip()
            pending = ""
    assert not pending.strip(), f"no shell understands {pending!r}"


def _is_whole(script: str) -> bool:
    shell = subprocess.run(["bash", "-n"], check=False, input=script.encode(), capture_output=True)
    return shell.returncode == 0


def _is_command(span: str) -> bool:
    program, _, rest = span.partition(" ")
    return program in _PROGRAMS and bool(rest)


def _normal(command: Command) -> str:
    return command.text if command.language == "python" else in_a_line(command.text)


def in_a_line(command: str) -> str:
    """Its words with single spaces, without comment and quotes: what tables know it by."""
    return " ".join(shlex.split(command, comments=True))
