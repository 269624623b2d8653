"""A stub node in a process of its own, to be killed."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class NodeProcess:
    """Runs from construction to `close`."""

    def __init__(self, name: str, port: int = 0) -> None:
        command = [sys.executable, "-m", "tests.router.stub_node", "--name", name]
        self.process = subprocess.Popen(
            [*command, "--port", str(port)], stdout=subprocess.PIPE, cwd=ROOT, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
