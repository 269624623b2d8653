"""The compose file as an operator starts it, under a name and ports of its own."""

import os
import ssl
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path

from kvmesh.certificates import CertificateFiles
from kvmesh.cli.ports import free_ports
from kvmesh.client import Client
from kvmesh.v1 import fleet_pb2

ROOT = Path(__file__).resolve().parents[2]
BUILD, START, STEP = 1500, 300, 120  # seconds
PORTS = ("HTTP", "GRPC", "PROMETHEUS", "ALERTMANAGER", "GRAFANA")
# Services whose images cannot be had here; compose/test.sh says so.
WITHOUT = os.environ.get("KVMESH_TEST_WITHOUT", "").split()


class Project:
    """A context manager: up and healthy on entry; nothing of it is left on exit.

    `variant` is one of compose/compose.VARIANT.yaml, `services` those that are started, with what
    they need: all of them where none are named.
    """

    def __init__(
        self,
        variant: str | None = None,
        services: Sequence[str] = (),
        tls: CertificateFiles | None = None,
        nodes: int = 2,
        **environment: object,
    ) -> None:
        self.name = f"kvmesh-test-{uuid.uuid4().hex[:8]}"
        self.tls = tls
        ports = dict(zip(PORTS, free_ports("127.0.0.1", len(PORTS)), strict=True))
        self.http_url = f"{'http' if tls is None else 'https'}://127.0.0.1:{ports['HTTP']}"
        self.grpc_target = f"127.0.0.1:{ports['GRPC']}"
        self.prometheus_url = f"http://127.0.0.1:{ports['PROMETHEUS']}"
        self.grafana_url = f"http://127.0.0.1:{ports['GRAFANA']}"
        self._files = [] if variant is None else with_variant(variant)
        self._services = services
        self._nodes = nodes
        self._environment = {
            **os.environ,
            **{f"KVMESH_{name}_PORT": str(port) for name, port in ports.items()},
            "KVMESH_DTYPE": "float32",  # so that another node goes on with the very same tokens
            "KVMESH_KV_CACHE_BYTES": str(512 << 20),
            **{name: str(value) for name, value in environment.items()},
        }

    def __enter__(self) -> "Project":
        try:
            self.up("--scale", f"cache-node={self._nodes}")
        except BaseException:
            print(self.logs())
            self.compose("down", "--volumes", "--timeout", "5")
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.compose("down", "--volumes", "--timeout", "5")

    def up(self, *arguments: str) -> None:
        """Returns when all services are healthy."""
        if not self._services:
            found = self.compose("config", "--services").split()
            self._services = [each for each in found if each not in WITHOUT]
        wait = ("--wait", "--wait-timeout", str(START))
        arguments += tuple(self._services)
        self.compose("up", "--detach", "--no-build", *wait, *arguments, timeout=START + 60)

    def compose(self, *arguments: str, timeout: float = STEP) -> str:
        command = ("docker", "compose", "--project-name", self.name, *self._files)
        return run(*command, *arguments, timeout=timeout, environment=self._environment)

    def docker(self, *arguments: str) -> str:
        return run("docker", *arguments, timeout=STEP)

    def containers(self, service: str) -> list[str]:
        """Their ids, which begin with the names of the nodes in them."""
        return self.compose("ps", "--quiet", service).split()

    def logs(self) -> str:
        return self.compose("logs", "--no-color", "--tail", "50")

    def client(self) -> Client:
        return Client(self.grpc_target, timeout=120, tls=self.tls)

    def tls_context(self) -> ssl.SSLContext | bool:
        """For httpx's `verify`."""
        if self.tls is None:
            return True
        context = ssl.create_default_context(cafile=self.tls.ca)
        context.load_cert_chain(self.tls.cert, self.tls.key)
        return context

    def healths(self) -> list[str]:
        """Of the nodes, as the router says."""
        with self.client() as client:
            found = [fleet_pb2.NodeHealth.Name(node.health) for node in client.list_nodes()]
        return [word.removeprefix("NODE_HEALTH_") for word in found]


def with_variant(name: str) -> list[str]:
    """The options that the file's own head says."""
    return ["-f", "compose/compose.yaml", "-f", f"compose/compose.{name}.yaml"]


def build_images() -> None:
    run("docker", "compose", "build", timeout=BUILD)


def run(
    *command: str,
    timeout: float,
    environment: dict[str, str] | None = None,
    cwd: Path = ROOT,
) -> str:
    """What it printed; AssertionError with all of it when it fails."""
    done = subprocess.run(
        command, cwd=cwd, env=environment, timeout=timeout, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    printed = f"{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
    assert done.returncode == 0, f"{' '.join(command)}:\n{printed}"
    return done.stdout
