"""Prints what pyproject.toml asks for, so that an image installs it before the code changes.

python requirements.py [EXTRA]...
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]


def required_by(extra: str) -> Iterator[str]:
    """With what the extras need that it is made of: kvmesh[node]."""
    for line in extras[extra]:
        if own := re.fullmatch(rf"{project['name']}\[(.+)\]", line):
            for part in own[1].split(","):
                yield from required_by(part)
        else:
            yield line


print(*project["dependencies"], sep="\n")
for extra in sys.argv[1:]:
    print(*required_by(extra), sep="\n")
