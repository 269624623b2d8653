"""A fleet started by `kvmesh serve`, as a user would, for tests to use."""

import json
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

from kvmesh.cli.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
START = 240.0  # seconds; the first start ever downloads and converts the model


def poll(condition, timeout, interval=0.05):
    """The first true value of `condition()`; fails after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(interval)
    raise AssertionError(f"not within {timeout} s: {condition}")


class Serving:
    """A context manager: up on entry, and no process of it is left on exit."""

    def __init__(self, *arguments, nodes=2, tls=None):
        """`tls`: files that the router demands of its clients."""
        self._context = None
        if tls is not None:
            self._context = ssl.create_default_context(cafile=tls.ca)
            self._context.load_cert_chain(tls.cert, tls.key)
        self.http_port, self.grpc_port = free_ports("127.0.0.1", 2)
        self.num_nodes = nodes
        self.http_url = f"{'https' if tls else 'http'}://127.0.0.1:{self.http_port}"
        self.grpc_target = f"127.0.0.1:{self.grpc_port}"
        ports = ("--http-port", str(self.http_port), "--grpc-port", str(self.grpc_port))
        self._command = ("serve", "--nodes", str(nodes), *ports, *arguments)
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by _end

    def __enter__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kvmesh.cli", *self._command],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            poll(lambda: self.all_up() or self._died(), START)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_):
        self._end()

    def nodes(self):
        """What the router says of its nodes, by name; empty while it does not answer."""
        try:
            url = f"{self.http_url}/health"
            with urllib.request.urlopen(url, timeout=2, context=self._context) as response:
                return {node["name"]: node for node in json.load(response)["nodes"]}
        except OSError:
            return {}

    def all_up(self):
        states = [node["health"] for node in self.nodes().values()]
        return len(states) == self.num_nodes and set(states) == {"up"}

    def pid_of(self, name):
        """The process that runs as node `name` now."""
        return next(p.pid for p in in_session(self.process.pid) if _is_node(p, name))

    def stop(self, number=signal.SIGTERM):
        """Sends a signal to `kvmesh serve` alone and returns its exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=40)

    def left(self):
        """Processes of the fleet that still run, `kvmesh serve` included."""
        return in_session(self.process.pid)

    def log(self):
        self._log.seek(0)
        return self._log.read()

    def _died(self):
        assert self.process.poll() is None, self.log()
        return False

    def _end(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            for process in self.left():
                os.kill(process.pid, signal.SIGKILL)
            self.process.wait()
        self._log.close()


def in_session(leader):
    """Running processes of the session that process `leader` started, alive itself or not."""
    return [p for p in psutil.process_iter() if _session(p) == leader]


def _session(process):
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else os.getsid(process.pid)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return None


def _is_node(process, name):
    try:
        return name in process.cmdline() and "node" in process.cmdline()
    except psutil.NoSuchProcess:
        return False
