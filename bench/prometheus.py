"""A real Prometheus that scrapes what it is told; it can be frozen, killed, started again."""

import json
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from kvmesh.cli.ports import free_ports

START = 60.0  # seconds at most: a busy machine is slow
ANSWER = 20.0


class PrometheusServer:
    """`start`, then `stop`, as often as wanted: it keeps what it had written."""

    def __init__(
        self,
        directory: Path,
        targets: Mapping[str, Sequence[str]],
        *,
        interval: float = 1.0,
        rules: Path | None = None,
    ) -> None:
        """Scrapes host:port of each job every `interval` seconds. Raises FileNotFoundError where no
        Prometheus is installed.
        """
        program = shutil.which("prometheus")
        if program is None:
            raise FileNotFoundError("prometheus is not installed; Debian has such a package")
        self._directory = directory
        self._targets = targets
        (port,) = free_ports("127.0.0.1", 1)
        self.url = f"http://127.0.0.1:{port}"
        config = directory / "prometheus.json"  # JSON is YAML
        config.write_text(json.dumps(_config(targets, interval, rules)))
        self._command = (
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers. Raises RuntimeError with its log when it does not."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        end = time.monotonic() + START
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"Prometheus does not start:\n{self._log.read_text()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """At once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Its connections stay open, and nobody reads from them."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def get(self, path: str, **query: str) -> Any:
        """`data` of what its API says. Raises OSError when it does not answer, or not with 200."""
        url = f"{self.url}/api/v1/{path}?{urlencode(query)}"
        with urllib.request.urlopen(url, timeout=ANSWER) as reply:
            return json.load(reply)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Its series now."""
        return list(self.get("query", query=expression)["result"])

    def scrapes(self) -> bool:
        """Whether every target answered the last time."""
        count = sum(len(each) for each in self._targets.values())
        return len(self.query("up == 1")) == count

    @property
    def _log(self) -> Path:
        return self._directory / "prometheus.log"

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=ANSWER):
                return True
        except OSError:
            return False


def _config(
    targets: Mapping[str, Sequence[str]], interval: float, rules: Path | None
) -> dict[str, Any]:
    every = f"{interval * 1e3:.0f}ms"
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": list(each)}]}
            for job, each in targets.items()
        ],
        "rule_files": [] if rules is None else [str(rules)],
    }
