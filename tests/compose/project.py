"""The compose file as an operator starts it, under a name and ports of its own."""

import os
import subprocess
import uuid
from pathlib import Path

from kvmesh.cli.ports import free_ports
from kvmesh.client import Client
from kvmesh.v1 import fleet_pb2

ROOT = Path(__file__).resolve().parents[2]
BUILD, START, STEP = 1500, 300, 120  # seconds


class Project:
    """A context manager: up and healthy on entry; nothing of it is left on exit."""

    def __init__(self) -> None:
        http, grpc, prometheus, alertmanager = free_ports("127.0.0.1", 4)
        self.name = f"kvmesh-test-{uuid.uuid4().hex[:8]}"
        self.http_url = f"http://127.0.0.1:{http}"
        self.grpc_target = f"127.0.0.1:{grpc}"
        self.prometheus_url = f"http://127.0.0.1:{prometheus}"
        self._environment = os.environ | {
            "KVMESH_HTTP_PORT": str(http),
            "KVMESH_GRPC_PORT": str(grpc),
            "KVMESH_PROMETHEUS_PORT": str(prometheus),
            "KVMESH_ALERTMANAGER_PORT": str(alertmanager),
            "KVMESH_DTYPE": "float32",  # so that another node goes on with the very same tokens
            "KVMESH_KV_CACHE_BYTES": str(512 << 20),
        }

    def __enter__(self) -> "Project":
        try:
            self.compose("build", timeout=BUILD)
            self.up()
        except BaseException:
            print(self.logs())
            self.compose("down", "--volumes", "--timeout", "5")
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.compose("down", "--volumes", "--timeout", "5")

    def up(self, *arguments: str) -> None:
        """Returns when all services are healthy."""
        wait = ("--wait", "--wait-timeout", str(START))
        self.compose("up", "--detach", "--no-build", *wait, *arguments, timeout=START + 60)

    def compose(self, *arguments: str, timeout: float = STEP) -> str:
        command = ("docker", "compose", "--project-name", self.name)
        return run(*command, *arguments, timeout=timeout, environment=self._environment)

    def docker(self, *arguments: str) -> str:
        return run("docker", *arguments, timeout=STEP)

    def containers(self, service: str) -> list[str]:
        """Their ids, which begin with the names of the nodes in them."""
        return self.compose("ps", "--quiet", service).split()

    def logs(self) -> str:
        return self.compose("logs", "--no-color", "--tail", "50")

    def healths(self) -> list[str]:
        """Of the nodes, as the router says."""
        with Client(self.grpc_target, timeout=10) as client:
            found = [fleet_pb2.NodeHealth.Name(node.health) for node in client.list_nodes()]
        return [word.removeprefix("NODE_HEALTH_") for word in found]


def run(*command: str, timeout: float, environment: dict[str, str] | None = None) -> str:
    """What it printed; AssertionError with all of it when it fails."""
    done = subprocess.run(
        command, cwd=ROOT, env=environment, timeout=timeout, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    printed = f"{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
    assert done.returncode == 0, f"{' '.join(command)}:\n{printed}"
    return done.stdout
