"""Memory of a process and all that it started, from /proc."""

from collections import defaultdict
from pathlib import Path

PROC = Path("/proc")


def resident_bytes(root: int) -> int:
    """Of the process `root` and its descendants; what they share counts once (PSS)."""
    return sum(_proportional(pid) for pid in family(root))


def family(root: int) -> list[int]:
    """The process `root` and its descendants that run now."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for path in PROC.iterdir():
        if path.name.isdigit() and (parent := _parent(path)) is not None:
            children[parent].append(int(path.name))
    found = [root]
    for pid in found:
        found += children[pid]
    return found


def _parent(path: Path) -> int | None:
    try:
        return int((path / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return None


def _proportional(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
