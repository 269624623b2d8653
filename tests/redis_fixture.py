"""A Redis server of the test's own: on a free port, in a directory of its own.

A test module imports the fixture by name:

    from tests.redis_fixture import redis_server
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

DEADLINE = 10.0  # seconds for the server to answer


class RedisServer:
    """Starts, stops, empties and freezes one redis-server process. The port stays the same."""

    def __init__(self, directory: Path, *options: str) -> None:
        self._directory = directory
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Idempotent."""
        if self._process is not None:
            return
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--save", "", "--appendonly", "no", "--dir", str(self._directory)]
        command += self._options
        with (self._directory / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait_until_it_answers()

    def stop(self) -> None:
        """Kills it; what it held is lost. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart_empty(self) -> None:
        self.stop()
        self.start()

    def freeze(self) -> None:
        """It keeps its connections and answers nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def _wait_until_it_answers(self) -> None:
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            if self._process.poll() is not None:
                break
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(16).startswith(b"+PONG"):
                        return
            except OSError:
                time.sleep(0.01)
        raise RuntimeError(f"no answer: {(self._directory / 'redis.log').read_text()}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def require_redis():
    """Where none is installed: skips, or fails if KVMESH_REQUIRE_REDIS=1."""
    if shutil.which("redis-server") is None:
        if os.environ.get("KVMESH_REQUIRE_REDIS") == "1":
            pytest.fail("redis-server: not installed, and KVMESH_REQUIRE_REDIS=1 requires it")
        pytest.skip("redis-server is not installed")


@pytest.fixture
def redis_server(tmp_path):
    """A running server, see `require_redis`."""
    require_redis()
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.stop()
