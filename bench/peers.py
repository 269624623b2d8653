"""Servers that a user would run instead, started for the time of a measurement.

They lie in one directory: `model` (Hugging Face files, bf16), `vllm/bin/vllm` (vLLM's CPU build)
and `hf/bin/python` (transformers).
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from bench.contestants import Served
from bench.openai_client import OpenAiClient

START = 600.0  # seconds at most
POLL = 0.5
LAST_WORDS = 2000  # bytes of a server's log that are shown when it does not start
GIB = 1 << 30

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""The environment of one compute thread."""

Command = tuple[list[str], Mapping[str, str]]


def _vllm(directory: Path, port: int, kv_bytes: int, max_model_len: int) -> Command:
    binaries = directory / "vllm/bin"
    command = [str(binaries / "vllm"), "serve", str(directory / "model"), "--dtype", "bfloat16"]
    command += ["--served-model-name", "vllm", "--max-model-len", str(max_model_len)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enable-prompt-tokens-details"]
    return command, {
        "PATH": f"{binaries}:{os.environ['PATH']}",  # it compiles with tools of its own
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": str(kv_bytes // GIB),
    }


def _hf(directory: Path, port: int, _kv_bytes: int, _max_model_len: int) -> Command:
    script = Path(__file__).parent / "hf_server.py"
    # -P: what lies beside the script is no module of its own.
    command = [str(directory / "hf/bin/python"), "-P", str(script)]
    return [*command, str(directory / "model"), str(port)], {}


PEERS: dict[str, Callable[[Path, int, int, int], Command]] = {"vllm": _vllm, "hf": _hf}
CHATLESS = {"hf"}


@contextmanager
def peer(
    name: str, directory: Path, port: int, kv_bytes: int, max_model_len: int
) -> Iterator[Served]:
    """Starts the peer, and ends it with the context. Raises RuntimeError if it does not come up."""
    command, environment = PEERS[name](directory.absolute(), port, kv_bytes, max_model_len)
    client = OpenAiClient(f"http://127.0.0.1:{port}", name)
    with (
        TemporaryFile() as log,
        subprocess.Popen(
            command,
            env={**os.environ, **ONE_THREAD, "HF_HUB_OFFLINE": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Not in a session of its own, to which Linux may give as much of the CPU as to all that
            # is in ours together.
            process_group=0,
        ) as process,
    ):
        try:
            _until_ready(name, client, process)
            yield Served(name, client, [process.pid], chats=name not in CHATLESS)
        except RuntimeError as error:
            log.seek(0)
            raise RuntimeError(f"{error}\n{_tail(log.read())}") from error
        finally:
            _end(process)


def _until_ready(name: str, client: OpenAiClient, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START
    while not client.ready():
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with exit code {process.returncode}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{name} did not start within {START:g} s")
        time.sleep(POLL)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Its whole process group: what it started goes with it."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=20)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _tail(log: bytes) -> str:
    return log[-LAST_WORDS:].decode(errors="replace")
