"""Memory and CPU time of a process and all that it started, from /proc."""

import os
from collections import defaultdict
from pathlib import Path

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")  # a second
PARENT, USER_TICKS, SYSTEM_TICKS = 1, 11, 12  # places in /proc/PID/stat, behind the name


def resident_bytes(root: int) -> int:
    """Of the process `root` and its descendants; what they share counts once (PSS)."""
    return sum(_proportional(pid) for pid in family(root))


def cpu_seconds(root: int) -> float:
    """Of the process `root` and its descendants that run now, since each has started."""
    stats = [stat for pid in family(root) if (stat := _stat(PROC / str(pid))) is not None]
    return sum(int(stat[USER_TICKS]) + int(stat[SYSTEM_TICKS]) for stat in stats) / TICKS


def family(root: int) -> list[int]:
    """The process `root` and its descendants that run now."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for path in PROC.iterdir():
        if path.name.isdigit() and (stat := _stat(path)) is not None:
            children[int(stat[PARENT])].append(int(path.name))
    found = [root]
    for pid in found:
        found += children[pid]
    return found


def _stat(path: Path) -> list[str] | None:
    """The fields behind the name, which may hold anything; None when the process has ended."""
    try:
        return (path / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _proportional(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
