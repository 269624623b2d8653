"""A node as far as this router knows: its last report, and what was sent there since."""

from typing import TYPE_CHECKING, NamedTuple

from kvmesh.v1 import cache_node_pb2 as pb
from router.policy import Candidate

if TYPE_CHECKING:
    from router.ledger import Change
    from router.node import Node


class Standing(NamedTuple):
    """Made anew when the report or what was sent changes, not for each request: a large fleet has
    many nodes to look at, of which few have changed.
    """

    load: pb.NodeLoad  # the report
    committed: int  # blocks that are given away
    seats: int  # samples that run or wait
    growth_share: float
    candidate: Candidate  # for a prompt of which it has nothing

    @classmethod
    def of(cls, node: "Node", change: "Change") -> "Standing":
        load = node.load
        requests = load.running + load.waiting
        return cls(
            load,
            max(0, load.committed_blocks + change.committed),
            max(0, requests + change.samples),
            load.growth_share,
            Candidate(
                node.name,
                queued_prefill_tokens=max(0, load.queued_prefill_tokens + change.prefill_tokens),
                active_blocks=max(0, node.held_blocks + change.blocks),
                requests=max(0, requests + change.requests),
                prefill_speed=load.prefill_tokens_per_second,
            ),
        )
