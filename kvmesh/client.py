"""A client for a router's gRPC API.

with Client("127.0.0.1:50051") as client:
    for event in client.generate("Once upon a time", max_tokens=64, temperature=0):
        print(event.text, end="", flush=True)

    done = client.generate(messages=[{"role": "user", "content": "Hi!"}]).result()
    print(done.text, done.route.node, done.usage.cached.gpu)
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import grpc

from kvmesh.errors import RequestError, from_rpc_error, invalid
from kvmesh.packing import pack_tokens, unpack_tokens
from kvmesh.v1 import fleet_pb2, fleet_pb2_grpc, inference_pb2, inference_pb2_grpc
from kvmesh.v1 import generate_pb2 as pb

__all__ = ["Client", "Completion", "Event", "Generation", "RequestError", "make_request"]

DEFAULT_TARGET = "127.0.0.1:50051"
_OPTIONS = (("grpc.max_receive_message_length", 64 << 20),)

Message = Mapping[str, Any]
"""role and content, and whatever else the model's chat template knows."""


@dataclass(frozen=True, slots=True)
class Event:
    """New tokens. Text ends on a whole character, so it can lag the tokens."""

    text: str
    token_ids: list[int]
    finish_reason: str | None  # stop, length, abort; None while it goes on


@dataclass(slots=True)
class Completion:
    """A whole answer: all events put together, and what router and node say of it."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    route: pb.RouteReport = field(default_factory=pb.RouteReport)
    summary: pb.Summary = field(default_factory=pb.Summary)
    ttft: float | None = None  # seconds from the call to the first token, seen from here

    @property
    def usage(self) -> pb.Usage:
        return self.summary.usage


class Generation:
    """A running request: iterate it for events as they come, or take the whole `result()`.

    Leaving it before its end, by `cancel` or as a context manager, ends the node's work.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._started = time.perf_counter()
        self._done = Completion()

    def __iter__(self) -> Iterator[Event]:
        """Raises RequestError when the request fails, at whatever point."""
        try:
            for frame in self._call:
                yield from self._read(frame)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None

    def result(self) -> Completion:
        """The whole answer, what has been iterated included. Raises RequestError."""
        for _ in self:
            pass
        return self._done

    def cancel(self) -> None:
        """Idempotent; does nothing once it has ended."""
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def _read(self, frame: pb.GenerateResponse) -> Iterator[Event]:
        done = self._done
        if frame.HasField("route"):
            done.route = frame.route
        if frame.HasField("summary"):
            done.summary = frame.summary
        for delta in frame.deltas:
            if done.ttft is None:
                done.ttft = time.perf_counter() - self._started
            event = Event(delta.text, unpack_tokens(delta.token_ids), _finish(delta))
            done.text += event.text
            done.token_ids += event.token_ids
            done.finish_reason = event.finish_reason or done.finish_reason
            yield event


class Client:
    """Thread-safe. Every method raises RequestError, with its status code and the wrong field."""

    def __init__(self, target: str = DEFAULT_TARGET, *, timeout: float | None = None) -> None:
        """`target` is host:port, `timeout` the default deadline of each call in seconds."""
        self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        self._timeout = timeout
        self._inference = inference_pb2_grpc.InferenceStub(self._channel)
        self._fleet = fleet_pb2_grpc.FleetStub(self._channel)

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        timeout: float | None = None,
        metadata: Sequence[tuple[str, str | bytes]] = (),
        **fields: Any,
    ) -> Generation:
        """Starts a request; see `make_request` for prompt and fields. Returns at once."""
        request = make_request(prompt, messages=messages, token_ids=token_ids, **fields)
        deadline = self._timeout if timeout is None else timeout
        call = self._inference.Generate(request, timeout=deadline, metadata=tuple(metadata))
        return Generation(call)

    def explain(self, prompt: str | None = None, **fields: Any) -> pb.RouteReport:
        """Where a request would go now, and what each node would cost. As `generate`."""
        request = fleet_pb2.ExplainRequest(request=make_request(prompt, **fields))
        with _errors():
            return self._fleet.Explain(request, timeout=self._timeout).route

    def tokenize(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        add_special_tokens: bool = True,
    ) -> list[int]:
        """The tokens that `generate` would send to the model."""
        request = inference_pb2.TokenizeRequest(add_special_tokens=add_special_tokens)
        if messages is not None:
            request.chat.CopyFrom(_chat(messages))
        elif prompt is not None:
            request.text = prompt
        with _errors():
            reply = self._inference.Tokenize(request, timeout=self._timeout)
        return unpack_tokens(reply.token_ids)

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        request = inference_pb2.DetokenizeRequest(
            token_ids=pack_tokens(token_ids), skip_special_tokens=skip_special_tokens
        )
        with _errors():
            return self._inference.Detokenize(request, timeout=self._timeout).text

    def list_nodes(self) -> list[fleet_pb2.NodeStatus]:
        """All nodes that the router was told of."""
        with _errors():
            reply = self._fleet.ListNodes(fleet_pb2.ListNodesRequest(), timeout=self._timeout)
        return list(reply.nodes)

    def close(self) -> None:
        """Ends all running requests."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_request(
    prompt: str | None = None,
    *,
    messages: Sequence[Message] | None = None,
    token_ids: Sequence[int] | None = None,
    **fields: Any,
) -> pb.GenerateRequest:
    """A request from exactly one form of prompt and any fields of GenerateRequest (model, priority,
    explain …) and of SamplingParams (max_tokens, temperature, seed, stop …).

    Raises RequestError for a prompt given twice or not at all, TypeError for an unknown field.
    """
    if sum(each is not None for each in (prompt, messages, token_ids)) != 1:
        raise invalid("prompt", "give exactly one of prompt, messages, token_ids")
    names = pb.GenerateRequest.DESCRIPTOR.fields_by_name
    own = {name: value for name, value in fields.items() if name in names}
    rest = {name: value for name, value in fields.items() if name not in names}
    request = pb.GenerateRequest(**own, sampling=_sampling(rest))
    if messages is not None:
        request.chat.CopyFrom(_chat(messages))
    elif token_ids is not None:
        request.token_ids = pack_tokens(token_ids)
    else:
        request.text = prompt or ""
    return request


def _sampling(fields: dict[str, Any]) -> pb.SamplingParams:
    if isinstance(fields.get("stop"), str):
        fields["stop"] = [fields["stop"]]
    unknown = fields.keys() - set(pb.SamplingParams.DESCRIPTOR.fields_by_name)
    if unknown:
        raise TypeError(f"no such field of a request: {', '.join(sorted(unknown))}")
    try:
        return pb.SamplingParams(**fields)
    except (TypeError, ValueError) as error:  # -1 for an unsigned field, a text for a number
        raise invalid("sampling", str(error)) from error


def _chat(messages: Sequence[Message]) -> pb.Chat:
    return pb.Chat(messages=[_message(each) for each in messages])


def _message(message: Message) -> pb.ChatMessage:
    extra = {key: value for key, value in message.items() if key not in ("role", "content")}
    return pb.ChatMessage(
        role=message.get("role", ""),
        content=message.get("content") or "",
        extra_json=json.dumps(extra) if extra else "",
    )


def _finish(delta: pb.SampleDelta) -> str | None:
    if not delta.finish_reason:
        return None
    return pb.FinishReason.Name(delta.finish_reason).removeprefix("FINISH_REASON_").lower()


class _errors:  # noqa: N801  # reads as a statement
    """Turns what grpc raises in its block into a RequestError."""

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        if isinstance(error, grpc.RpcError):
            raise from_rpc_error(error) from None
