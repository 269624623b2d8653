"""How a child process notices that its parent is gone, even by SIGKILL.

The parent holds the write end of a pipe that is the child's standard input, and never writes. The
kernel closes it when the parent ends, in whatever way, and the child reads the end of the file.
"""

import os
import signal
import threading
import time

TIED = "KVMESH_TIED_TO_STDIN"
PRESET = "KVMESH_PRESET"
GRACE = 5.0  # seconds to stop cleanly without a parent


def environment() -> dict[str, str]:
    """The environment for a child whose standard input is such a pipe. What a preset set here, the
    child is told flag by flag.
    """
    return {name: value for name, value in os.environ.items() if name != PRESET} | {TIED: "1"}


def end_with_parent() -> None:
    """Ends this process when its standard input ends, if it was started so."""
    if os.environ.pop(TIED, None):
        threading.Thread(target=_watch, name="parent-watch", daemon=True).start()


def _watch() -> None:
    while os.read(0, 64):  # not through sys.stdin, whose lock would be missed at exit
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)
