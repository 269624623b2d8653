"""A stub node in a process of its own, to be killed."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class NodeProcess:
    """Runs from construction to `close`."""

    def __init__(self, name: str, port: int = 0, **options: object) -> None:
        """`options` are flags of the stub's `main`."""
        self.name, self._options = name, options
        flags = {"name": name, "port": port, **options}
        words = [
            word
            for flag, value in flags.items()
            for word in (f"--{flag.replace('_', '-')}", str(value))
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.router.stub_node", *words],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def again(self) -> "NodeProcess":
        """Killed, and another one of the same name started on its port."""
        self.close()
        return NodeProcess(self.name, self.port, **self._options)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
