"""What the node tells of each request that has ended, in whatever way. Never a prompt."""

from collections.abc import Iterable

import structlog

from cache_node.sequence import Request
from kvmesh.v1 import cache_node_pb2 as pb

log = structlog.get_logger()

Metadata = Iterable[tuple[str, str | bytes]]


class RequestLog:
    """Writes a line for each, if told to."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled

    def ended(self, message: pb.NodeGenerateRequest, request: Request, _metadata: Metadata) -> None:
        """`message` came with `_metadata`, and was run as `request`."""
        if not self._enabled:
            return
        log.info(
            "request",
            request_id=message.request_id,
            attempt=message.attempt,
            prompt_tokens=len(request.prompt),
            output_tokens=sum(seq.num_output for seq in request.sequences),
            cached_tokens=request.cached_tokens,
            loaded_tokens=request.loaded_tokens,
            preemptions=request.preemptions,
            finish=finish_words(request),
        )


def finish_words(request: Request) -> list[str]:
    """Why each sample has ended. Of those that had ended elsewhere, nobody here knows how."""
    here = [seq for seq in request.sequences if seq.finish_reason or seq in request.live]
    reasons = [seq.finish_reason for seq in here]
    return [reason.name.lower() if reason else "cancelled" for reason in reasons]
