"""Writes the dashboards that Grafana is provisioned with:

python -m compose.grafana.build            writes dashboards/*.json
python -m compose.grafana.build --check    exit code 1 if they are not what the code says
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from .cache import cache
from .fleet import fleet
from .latency import latency
from .memory import memory

FOLDER = Path(__file__).with_name("dashboards")
DASHBOARDS = (fleet, memory, cache, latency)


def main(arguments: list[str]) -> int:
    files = {f"{each.__name__}.json": _text(each().build()) for each in DASHBOARDS}
    if arguments == ["--check"]:
        return _check(files)
    FOLDER.mkdir(exist_ok=True)
    for name, text in files.items():
        (FOLDER / name).write_text(text)
    return 0


def _check(files: Mapping[str, str]) -> int:
    there = {path.name: path.read_text() for path in FOLDER.iterdir()}
    wrong = sorted(name for name in there.keys() | files if there.get(name) != files.get(name))
    if wrong:
        print(f"{', '.join(wrong)}: not what the code says: make dashboards", file=sys.stderr)
    return 1 if wrong else 0


def _text(made: Any) -> str:
    return json.dumps(made, cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
