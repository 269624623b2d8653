"""A client for a router's gRPC API.

with Client("127.0.0.1:50051") as client:
    for event in client.generate("Once upon a time", max_tokens=64, temperature=0):
        print(event.text, end="", flush=True)

    done = client.generate(messages=[{"role": "user", "content": "Hi!"}]).result()
    print(done.text, done.route.node, done.usage.cached.gpu)
"""

import threading
from collections.abc import Sequence
from typing import Any, Self

import grpc

from kvmesh.certificates import CertificateFiles
from kvmesh.direct import DirectCall
from kvmesh.errors import RequestError, from_rpc_error, invalid
from kvmesh.generation import Completion, Event, Generation
from kvmesh.make_request import Message, chat_of, make_request
from kvmesh.packing import pack_tokens, unpack_tokens
from kvmesh.route_stream import RouteStreams
from kvmesh.seconds import LONGEST
from kvmesh.tls import channel_credentials, open_channel
from kvmesh.v1 import fleet_pb2, fleet_pb2_grpc, inference_pb2, inference_pb2_grpc
from kvmesh.v1 import generate_pb2 as pb

__all__ = ["Client", "Completion", "Event", "Generation", "RequestError", "make_request"]

DEFAULT_TARGET = "127.0.0.1:50051"
_OPTIONS = (("grpc.max_receive_message_length", 64 << 20),)


class Client:
    """Thread-safe. Every method raises RequestError, with its status code and the wrong field."""

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout: float | None = None,
        api_key: str | None = None,
        tls: CertificateFiles | None = None,
        direct: bool = False,
    ) -> None:
        """`target` is host:port, `timeout` the default deadline of each call in seconds.

        `api_key` says who asks; anybody who can read the network reads it, unless there is `tls`,
        whose `ca` the router's certificate must come from. Raises ValueError for wrong files, and
        for a key that cannot be sent.

        `direct`: tokens stream straight from the nodes, on leases of the router; a request whose
        node is lost goes on on another. A router without leases runs requests itself.
        """
        if api_key and not (api_key.isascii() and api_key.isprintable()):
            raise ValueError("api_key: must have letters, digits and signs of ASCII alone")
        self._credentials = channel_credentials(tls)
        self._channel = open_channel(target, self._credentials, _OPTIONS)
        self._direct = direct
        self._nodes: dict[str, grpc.Channel] = {}
        self._opening = threading.Lock()
        self._timeout = _checked(timeout)
        self._who = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        self._inference = inference_pb2_grpc.InferenceStub(self._channel)
        self._routes = RouteStreams(self._inference, self._who)
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
        deadline = self._timeout if timeout is None else _checked(timeout)
        sent = (*self._who, *metadata)
        if self._direct:
            streams = None if metadata else self._routes
            return Generation(
                DirectCall(self._inference, streams, self._node_channel, request, deadline, sent)
            )
        return Generation(self._inference.Generate(request, timeout=deadline, metadata=sent))

    def explain(self, prompt: str | None = None, **fields: Any) -> pb.RouteReport:
        """Where a request would go now, and what each node would cost. As `generate`."""
        request = fleet_pb2.ExplainRequest(request=make_request(prompt, **fields))
        with _errors():
            return self._fleet.Explain(request, timeout=self._timeout, metadata=self._who).route

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
            request.chat.CopyFrom(chat_of(messages))
        elif prompt is not None:
            request.text = prompt
        with _errors():
            reply = self._inference.Tokenize(request, timeout=self._timeout, metadata=self._who)
        return unpack_tokens(reply.token_ids)

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        request = inference_pb2.DetokenizeRequest(
            token_ids=pack_tokens(token_ids), skip_special_tokens=skip_special_tokens
        )
        with _errors():
            return self._inference.Detokenize(
                request, timeout=self._timeout, metadata=self._who
            ).text

    def list_nodes(self) -> list[fleet_pb2.NodeStatus]:
        """All nodes that the router was told of."""
        with _errors():
            reply = self._fleet.ListNodes(
                fleet_pb2.ListNodesRequest(), timeout=self._timeout, metadata=self._who
            )
        return list(reply.nodes)

    def overview(self) -> fleet_pb2.OverviewResponse:
        """Rates, queue, nodes and the last requests, see Fleet.Overview. For admins."""
        with _errors():
            return self._fleet.Overview(
                fleet_pb2.OverviewRequest(), timeout=self._timeout, metadata=self._who
            )

    def pin_prefix(
        self,
        prefix: pb.GenerateRequest,
        *,
        nodes: int = 0,
        ttl: float | None = None,
        priority: int = 0,
        tenant: str = "",
    ) -> fleet_pb2.PinPrefixResponse:
        """Keeps a prefix in the cache, see Fleet.PinPrefix; `ttl` in seconds. For admins."""
        request = fleet_pb2.PinPrefixRequest(
            prefix=prefix, nodes=nodes, priority=priority, tenant=tenant
        )
        if ttl is not None:
            try:
                request.ttl.FromNanoseconds(int(ttl * 1e9))
            except (ValueError, OverflowError) as error:
                raise invalid("ttl", f"must be a time in seconds, is {ttl:g}") from error
        with _errors():
            return self._fleet.PinPrefix(request, timeout=self._timeout, metadata=self._who)

    def unpin_prefix(self, pin_id: str) -> fleet_pb2.UnpinPrefixResponse:
        """Lets a pin go on all nodes. For admins."""
        request = fleet_pb2.UnpinPrefixRequest(pin_id=pin_id)
        with _errors():
            return self._fleet.UnpinPrefix(request, timeout=self._timeout, metadata=self._who)

    def clear_cache(self, node: str = "", *, pins: bool = False) -> fleet_pb2.ClearCacheResponse:
        """Forgets what is cached, on one node or on all. For admins."""
        request = fleet_pb2.ClearCacheRequest(node=node, pins=pins)
        with _errors():
            return self._fleet.ClearCache(request, timeout=self._timeout, metadata=self._who)

    def close(self) -> None:
        """Ends all running requests."""
        self._routes.close()
        self._channel.close()
        for channel in self._nodes.values():
            channel.close()

    def _node_channel(self, address: str, tls: bool) -> grpc.Channel:
        """Nodes are trusted by the same roots as the router, which says whether they speak TLS."""
        credentials = (self._credentials or grpc.ssl_channel_credentials()) if tls else None
        with self._opening:
            if address not in self._nodes:
                self._nodes[address] = open_channel(address, credentials, _OPTIONS)
            return self._nodes[address]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _checked(timeout: float | None) -> float | None:
    """Raises INVALID_ARGUMENT for what is no time. One that is over already is one."""
    if timeout is not None and not timeout <= LONGEST:
        raise invalid("timeout", f"must be at most {LONGEST:g} s, or None, is {timeout}")
    return timeout


class _errors:  # noqa: N801  # reads as a statement
    """Turns what grpc raises in its block into a RequestError."""

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        if isinstance(error, grpc.RpcError):
            raise from_rpc_error(error) from None
