"""The account of an ended request, as its client gets it."""

from cache_node.sequence import Request
from kvmesh.v1 import cache_node_pb2
from kvmesh.v1 import generate_pb2 as pb


def summary(request: Request, info: cache_node_pb2.NodeInfo) -> pb.Summary:
    """Times of a request that ended before it was scheduled count as waiting."""
    assert request.finished is not None
    scheduled = request.first_scheduled or request.finished
    return pb.Summary(
        node=info.name,
        epoch=info.epoch,
        usage=pb.Usage(
            prompt_tokens=len(request.prompt),
            completion_tokens=sum(seq.num_output for seq in request.sequences),
            cached=pb.CachedTokens(gpu=request.cached_tokens, cpu=request.loaded_tokens),
        ),
        queue_us=_us(scheduled - request.arrival),
        prefill_us=_us((request.first_token or request.finished) - scheduled),
        total_us=_us(request.finished - request.arrival),
        preemptions=request.preemptions,
    )


def _us(seconds: float) -> int:
    return int(seconds * 1e6)
