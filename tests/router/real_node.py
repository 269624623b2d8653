"""A cache node as a process of its own: real engine and memory, and a model of a few kilobytes."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from kvmesh.cli.parent import environment
from tests.router import tiny_model
from tests.tiny_model import save_tiny

ROOT = Path(__file__).resolve().parents[2]


def save_model(directory: Path, **changes: object) -> Path:
    """With the tokenizer of the stub nodes: each byte is a token. `changes` as of save_tiny."""
    fields = {"vocab_size": tiny_model.VOCAB_SIZE, "eos_token_id": tiny_model.END, **changes}
    save_tiny(directory, **fields)
    for name, content in tiny_model.tokenizer_files().items():
        (directory / name).write_bytes(content)
    return directory


class RealNode:
    """Runs from construction to `close`, of the configuration that `kvmesh node` is given."""

    def __init__(self, model: Path, **options: object) -> None:
        defaults = {"device": "cpu", "dtype": "float32", "port": 0, "threads": 1}
        flags = [
            part
            for name, value in ({"model": model} | defaults | options).items()
            for part in (f"--{name.replace('_', '-')}", str(value))
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvmesh.cli", "node", *flags],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.address = self._ready()["address"]

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def close(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()

    def _ready(self) -> dict:
        assert self._process.stderr is not None
        told = []
        for line in self._process.stderr:
            if line.startswith("{") and (entry := json.loads(line))["event"] == "ready":
                return entry
            told.append(line)
        self.close()
        raise AssertionError("".join(["the node has not started\n", *told]))
