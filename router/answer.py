"""A node's answer on its way to the client: frames that nobody parses."""

import time

from google.protobuf.message import DecodeError

from kvmesh.errors import RequestError, unavailable
from kvmesh.v1 import generate_pb2 as pb
from router.fleet import Model
from router.journey import Journey
from router.metadata import USAGE, Pair, find, to_client
from router.metrics import RouterMetrics
from router.node_call import NodeCall, NodeFailed
from router.prompt import Prompt
from router.relayed import Relayed


class Answer:
    """A stream of serialized GenerateResponse frames. The route report is part of the first.

    When the node is lost, another one goes on where it was: the client sees no seam.
    """

    def __init__(
        self, journey: Journey, call: NodeCall, first: bytes | None, metrics: RouterMetrics
    ) -> None:
        """`call` has given its first frame."""
        self.report = journey.report
        self.frames = 0
        self._journey = journey
        self._call = call
        self._first = first
        self._ended = first is None
        self._cut_short = False  # the node was lost once it had said all
        self._metrics = metrics
        self._relayed_at = 0.0  # the last frame
        self._relayed = Relayed(journey.job.samples)

    @property
    def prompt(self) -> Prompt:
        return self._journey.job.prompt

    @property
    def model(self) -> Model:
        return self._journey.job.model

    @property
    def node_name(self) -> str:
        """Of the node that answers now."""
        return self._call.node_name

    @property
    def resumes(self) -> int:
        """How often another node has gone on with it."""
        return self._journey.resumes

    @property
    def initial_metadata(self) -> list[Pair]:
        return to_client(self._call.initial_metadata)

    async def read(self) -> bytes | None:
        """The next frame, None at the end with status OK.

        Raises NodeError with the node's status, and another RequestError when the node is lost and
        no other goes on.
        """
        if self.frames == 0:
            self._relay(self._first or b"")
            # Two serialized messages after each other are one with the fields of both.
            return pb.GenerateResponse(route=self.report).SerializeToString() + self._relayed.last
        if self._ended:
            return None
        try:
            frame = await self._call.read()
        except NodeFailed as failed:
            self._cut_short = self._relayed.complete
            frame = None if self._cut_short else await self._go_on(failed)
        if frame is None:
            self._ended = True
            return None
        self._relay(frame)
        return frame

    def _relay(self, frame: bytes) -> None:
        now = time.monotonic()
        if self.frames:
            self._metrics.next_frame(now - self._relayed_at)
        self._relayed_at = now
        self.frames += 1
        self._relayed.add(frame)

    async def _go_on(self, failed: NodeFailed) -> bytes | None:
        """The first frame of another node, which this answer comes from now."""
        self._call.close()
        lost = self._call.node_name
        try:
            self._call, frame = await self._journey.go_on(self._call, failed, self._relayed)
        except RequestError as error:
            said = f"{lost} was lost after {self.frames} frames of the answer"
            raise unavailable(f"{said}: {failed}; {error.message}") from failed
        return frame

    async def trailing_metadata(self) -> list[Pair]:
        """Once the stream has ended."""
        if self._cut_short:
            return [(USAGE, (await self.summary()).SerializeToString())]
        return to_client(await self._call.trailing_metadata())

    async def summary(self) -> pb.Summary:
        """How it ended, once it has: from the trailing metadata, else from the last frame; empty if
        neither has it.
        """
        packed = find(await self._call.trailing_metadata(), USAGE)
        try:
            if isinstance(packed, bytes):
                return pb.Summary.FromString(packed)
            return pb.GenerateResponse.FromString(self._relayed.last).summary
        except DecodeError:
            return pb.Summary()

    def close(self) -> None:
        """Idempotent. Ends the node's work if it has not ended, and releases the reservation."""
        self._call.close()
