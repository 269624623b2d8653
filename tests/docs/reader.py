"""Somebody who types what the documents say, beside a fleet that runs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.docs.commands import ROOT, Command
from tests.docs.tables import ALSO_GOOD
from tests.e2e.serving import Serving

LONGEST = 150.0  # seconds of a command, on a busy machine

SYSTEM = "You are the keeper of a lighthouse. You answer in one sentence. " * 4
TRACE = '{"timestamp": %d, "input_length": 1024, "output_length": 8, "hash_ids": [0, %d]}\n'


class Reader:
    """Works in a directory that looks like the repository, so that nothing is left in that."""

    def __init__(self, fleet: Serving, place: Path) -> None:
        self.fleet = fleet
        self.place = place
        for path in ROOT.iterdir():
            if path.name != "kvmesh-load":  # where reports of loads go
                (place / path.name).symlink_to(path)
        (place / "system.txt").write_text(SYSTEM)
        (place / "trace.jsonl").write_text("".join(TRACE % (i * 1000, i + 1) for i in range(20)))
        (place / "home").mkdir()
        (place / "home/.curlrc").write_text("fail\n")  # a refusal is a failure

    def environment(self) -> dict[str, str]:
        """Where the programs are, and the fleet for commands that name no address."""
        return {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "VIRTUAL_ENV": sys.prefix,
            "CURL_HOME": str(self.place / "home"),
            "KVMESH_ROUTER": self.fleet.grpc_target,
            "COLUMNS": "160",
            "OMP_NUM_THREADS": "1",  # threads that wait for work would take it from the fleet
        }

    def here(self, text: str) -> str:
        """With the addresses of this fleet: the default ports may be somebody else's."""
        text = text.replace("127.0.0.1:50051", self.fleet.grpc_target)
        return text.replace("http://127.0.0.1:8000", self.fleet.http_url)

    def run(self, command: Command) -> str:
        """What it shows. Fails unless it ends well and in time."""
        script = self.here(command.text)
        shell = ("bash", "-o", "pipefail", "-c")
        process = subprocess.Popen(
            [sys.executable, "-c", script] if command.language == "python" else [*shell, script],
            cwd=self.place,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        try:
            shown, _ = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            shown, _ = process.communicate()
            raise AssertionError(f"not within {LONGEST} s: {command.text}\n{shown}") from None
        assert _ended_well(command.text, process.returncode, shown), f"{command.text}\n{shown}"
        assert "Traceback" not in shown, shown
        return shown


def _ended_well(command: str, code: int, shown: str) -> bool:
    also = next((also for begin, also in ALSO_GOOD.items() if command.startswith(begin)), {})
    return code == 0 or (code in also and also[code] in shown)
