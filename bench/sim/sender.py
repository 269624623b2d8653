"""Requests of a load to a simulated router."""

import asyncio

from bench.load.outcome import Outcome, RequestFailedError
from bench.load.plan import Turn
from bench.load.sender import Clock
from bench.sim.prompts import Prompts
from bench.sim.router import SimRouter
from kvmesh.errors import RequestError
from kvmesh.v1 import generate_pb2 as pb

TOKEN_BYTES = 4


class SimSender:
    """A `Sender`. `path`: seconds that a request and its answer are on their way, spent before."""

    def __init__(self, router: SimRouter, prompts: Prompts, path: float) -> None:
        self._router = router
        self._prompts = prompts
        self._path = path

    async def open(self) -> None:
        pass

    def prepare(self, turn: Turn) -> bytes:  # noqa: ARG002
        return b""  # written when it is sent: nothing waits for it

    async def send(self, body: bytes, outcome: Outcome, clock: Clock) -> None:  # noqa: ARG002
        turn = outcome.turn
        prompt = self._prompts.write(turn.prompt)
        await asyncio.sleep(self._path)
        try:
            async with self._router.generate(str(turn.number), prompt, turn.output) as answer:
                while (packed := await answer.read()) is not None:
                    frame = pb.GenerateResponse.FromString(packed)
                    if tokens := sum(len(delta.token_ids) for delta in frame.deltas):
                        outcome.frame(clock(), tokens // TOKEN_BYTES)
                    if frame.HasField("summary"):
                        usage = frame.summary.usage
                        outcome.prompt_tokens = usage.prompt_tokens
                        outcome.cached_tokens = usage.cached.gpu
                        outcome.node = frame.summary.node
        except RequestError as error:
            raise RequestFailedError(error.code.name, error.message) from error

    async def close(self) -> None:
        pass
