"""What a router is told of its leases."""

import asyncio

from cache_node.lease_news import LeaseNews
from kvmesh.v1 import cache_node_pb2 as pb


def told(subscription):
    state = pb.NodeState()
    subscription.fill(state)
    return state.all_leases, [(each.request_id, each.ended) for each in state.leases]


def request(name):
    return pb.NodeGenerateRequest(request_id=name, attempt=1, router_id="router")


def test_each_lease_is_told_of_once_between_two_states():
    news, changed = LeaseNews(), asyncio.Event()
    with news.running(request("long")):
        subscription = news.subscribe("router", changed)
        assert told(subscription) == (True, [("long", False)])
        with news.running(request("short")) as usage:
            usage.prompt_tokens, usage.completion_tokens = 7, 1
        assert changed.is_set()
        state = pb.NodeState()
        subscription.fill(state)
        (report,) = state.leases
        assert (report.request_id, report.ended, report.usage.prompt_tokens) == ("short", True, 7)
        assert told(subscription) == (False, [])
    assert told(subscription) == (False, [("long", True)])
    assert told(news.subscribe("another", changed)) == (True, [])
