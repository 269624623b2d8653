"""Requests to a kvmesh router's gRPC API."""

import asyncio

import grpc

from bench.load.config import LoadConfig
from bench.load.outcome import Outcome, RequestFailedError
from bench.load.plan import Turn
from bench.load.prompt import Writer
from bench.load.sender import Clock
from kvmesh.certificates import CertificateFiles
from kvmesh.make_request import make_request
from kvmesh.tls import channel_credentials, open_aio_channel
from kvmesh.v1 import generate_pb2 as pb

CONNECT = 10.0  # seconds
OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.bdp_probe", 0),
)
TOKEN_BYTES = 4


class GrpcSender:
    """A `Sender`. Bodies are serialised ahead, and go out as they are."""

    def __init__(self, target: str, config: LoadConfig) -> None:
        """Raises ValueError for wrong certificate files."""
        self._target = target
        self._config = config
        self._writer = Writer(config.seed, config.vocabulary)
        self._metadata = metadata_of(config)
        self._credentials = credentials_of(config)

    async def open(self) -> None:
        self._channel = open_aio_channel(self._target, self._credentials, OPTIONS)
        self._generate: grpc.aio.UnaryStreamMultiCallable[bytes, pb.GenerateResponse]
        self._generate = self._channel.unary_stream(
            "/kvmesh.v1.Inference/Generate",
            request_serializer=None,
            response_deserializer=pb.GenerateResponse.FromString,
        )
        if not await reachable(self._channel, CONNECT):
            await self._channel.close()
            raise ConnectionError(f"nothing answers at {self._target}")

    def prepare(self, turn: Turn) -> bytes:
        prompts = {"tokens": "token_ids", "text": "prompt", "chat": "messages"}
        form = self._config.prompts
        written = {
            "tokens": self._writer.token_ids,
            "text": self._writer.text,
            "chat": self._writer.messages,
        }[form](turn.prompt)
        request = make_request(
            **{prompts[form]: written},  # type: ignore[arg-type]
            model=self._config.model or "",
            max_tokens=turn.output,
            temperature=0.0,
            ignore_eos=True,
            seed=self._config.seed + turn.number,
        )
        return request.SerializeToString()

    async def send(self, body: bytes, outcome: Outcome, clock: Clock) -> None:
        call = self._generate(body, timeout=self._config.timeout, metadata=self._metadata)
        summary = None
        try:
            while (frame := await call.read()) is not grpc.aio.EOF:
                assert isinstance(frame, pb.GenerateResponse)
                if tokens := sum(len(delta.token_ids) for delta in frame.deltas):
                    outcome.frame(clock(), tokens // TOKEN_BYTES)
                if frame.HasField("summary"):
                    summary = frame.summary
        except grpc.aio.AioRpcError as error:
            raise RequestFailedError(error.code().name, error.details() or "") from error
        if summary is None:
            raise RequestFailedError("INCOMPLETE", "the stream ended without a summary")
        usage = summary.usage
        outcome.prompt_tokens = usage.prompt_tokens
        outcome.cached_tokens = usage.cached.gpu + usage.cached.cpu + usage.cached.remote
        outcome.node = summary.node

    async def close(self) -> None:
        await self._channel.close()


def metadata_of(config: LoadConfig) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {config.api_key}"),) if config.api_key else ()


def credentials_of(config: LoadConfig) -> grpc.ChannelCredentials | None:
    """None for plain text. Raises ValueError for wrong files."""
    if not (config.tls or config.tls_ca or config.tls_cert):
        return None
    return channel_credentials(CertificateFiles(config.tls_cert, config.tls_key, config.tls_ca))


async def reachable(channel: grpc.aio.Channel, seconds: float) -> bool:
    """Whether the channel connects in time."""
    try:
        await asyncio.wait_for(channel.channel_ready(), seconds)
    except TimeoutError:
        return False
    return True
