"""A real Prometheus for tests, which scrapes what they name.

`require_prometheus` is for tests that need promtool alone.
"""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from kvmesh.cli.ports import free_ports
from tests.e2e.serving import poll

START = 30.0  # seconds


def require_prometheus() -> None:
    """Where none is installed: skips, which CI refuses."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")


class PrometheusServer:
    """`start`, then `stop` once; it can be frozen and killed between."""

    def __init__(
        self, directory: Path, targets: Mapping[str, Sequence[str]], rules: Path | None = None
    ) -> None:
        """`targets`: host:port of each job's processes."""
        require_prometheus()
        self._directory = directory
        self._targets = targets
        self._rules = rules
        (self.port,) = free_ports("127.0.0.1", 1)
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "PrometheusServer":
        """Returns when it answers. Again after `stop`: with what it had written."""
        config = self._directory / "prometheus.yml"
        config.write_text(yaml.safe_dump(self._config()))
        with (self._directory / "log").open("a") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={config}",
                    f"--storage.tsdb.path={self._directory / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=log,
                stderr=log,
            )
        self._http = httpx.Client(base_url=self.url, timeout=20, trust_env=False)
        poll(self._ready, START)
        return self

    def stop(self) -> None:
        """Nothing of it is left; it may be started again."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
            self._http.close()

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def get(self, path: str, **query: str) -> Any:
        """`data` of what the API says."""
        reply = self._http.get(f"/api/v1/{path}", params=query)
        assert reply.status_code == 200, f"{query}: {reply.text}"
        return reply.json()["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Its series now."""
        return list(self.get("query", query=expression)["result"])

    def scraped(self) -> bool:
        """Whether every target answers."""
        count = sum(len(each) for each in self._targets.values())
        return len(self.query("up == 1")) == count

    def _ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self._directory / "log").read_text()
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def _config(self) -> dict[str, Any]:
        jobs = [
            {"job_name": job, "static_configs": [{"targets": list(targets)}]}
            for job, targets in self._targets.items()
        ]
        return {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "scrape_configs": jobs,
            "rule_files": [] if self._rules is None else [str(self._rules)],
        }
