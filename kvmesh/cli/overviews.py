"""What the router tells of its fleet, asked for again and again."""

import threading
import time
from typing import TYPE_CHECKING

from kvmesh.cli.ask import explain
from kvmesh.errors import RequestError

if TYPE_CHECKING:
    from kvmesh.client import Client
    from kvmesh.v1.fleet_pb2 import OverviewResponse


class Overviews:
    """The newest one, from `start` to the end of the process: a router that hangs holds nobody up.

    `problem` says why there is no newer one, and is None while all is well.
    """

    def __init__(self, client: "Client", router: str, interval: float) -> None:
        """`interval`: seconds between two."""
        self.newest: OverviewResponse | None = None
        self.problem: str | None = None
        self.seen = time.monotonic()  # when the newest came
        self._client = client
        self._router = router
        self._interval = interval

    def take(self) -> None:
        """Asks once."""
        try:
            self.newest = self._client.overview()
        except RequestError as error:
            self.problem = explain(error, self._router)
        else:
            self.seen, self.problem = time.monotonic(), None

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True, name="overviews").start()

    def _run(self) -> None:
        while True:
            time.sleep(self._interval)
            self.take()
