"""A tenant's rates and concurrency on one router's account."""

import pytest

from kvmesh.errors import Code, RequestError
from kvmesh.v1 import generate_pb2 as pb
from router.charge import TokenAccount
from router.local_limits import FIRST_GUESS, LocalLimits
from router.request_size import RequestSize
from router.tenants import Tenant, TenantLimits
from router.token_bucket import TokenBucket

SIZE = RequestSize(100, 1000, 1, 16)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def tenant(name="acme", **limits):
    return Tenant(name, TenantLimits(**limits))


def refusal(action):
    with pytest.raises(RequestError) as caught:
        action()
    assert caught.value.code == Code.RESOURCE_EXHAUSTED
    return caught.value


def test_a_bucket_gives_its_burst_then_its_rate():
    bucket = TokenBucket(rate=2, burst=6, now=0)
    bucket.take(6, 0)
    assert bucket.delay(3, 0) == 1.5
    assert bucket.delay(3, 1.5) == 0
    assert bucket.delay(6, 100) == 0
    bucket.take(6, 100)
    assert bucket.delay(1, 100) == 0.5


def test_more_than_a_burst_waits_for_a_full_bucket_and_leaves_a_debt():
    bucket = TokenBucket(rate=2, burst=6, now=0)
    assert bucket.delay(100, 0) == 0
    bucket.take(100, 0)
    assert bucket.delay(1, 0) == (94 + 1) / 2


def test_what_is_given_back_does_not_exceed_the_burst():
    bucket = TokenBucket(rate=1, burst=5, now=0)
    bucket.take(-100, 0)
    bucket.take(5, 0)
    assert bucket.delay(1, 0) == 1


def test_requests_a_second_and_at_once():
    clock = Clock()
    limits = LocalLimits(clock)
    acme = tenant(requests_per_second=2, burst_seconds=1, concurrency=2)
    limits.begin(acme)
    limits.begin(acme)
    error = refusal(lambda: limits.begin(acme))
    assert error.message.startswith("concurrency: tenant acme is at its limit of 2")
    limits.end(acme, 2)
    error = refusal(lambda: limits.begin(acme))
    assert error.message.startswith("requests_per_second: tenant acme is at its limit of 2")
    assert error.retry_after == 0.5
    zeta = tenant("zeta", requests_per_second=2)
    limits.begin(zeta)
    clock.now = 0.5
    limits.begin(acme)
    limits.end(acme)
    assert not limits.idle
    limits.end(zeta)
    assert limits.idle


def test_other_limits_count_from_then_on_and_forget_nothing():
    clock = Clock()
    limits = LocalLimits(clock)
    slow = tenant(requests_per_second=1, burst_seconds=1)
    limits.begin(slow)
    faster = tenant(requests_per_second=10, burst_seconds=1)
    assert refusal(lambda: limits.begin(faster)).retry_after == 0.1
    assert refusal(lambda: limits.begin(tenant(concurrency=1))).retry_after
    limits.end(slow)
    limits.begin(tenant())
    limits.begin(tenant())


def usage(prompt=100, output=50):
    return pb.Usage(prompt_tokens=prompt, completion_tokens=output)


async def test_tokens_are_estimated_and_then_corrected_by_what_was_used():
    limits = LocalLimits(Clock())
    account = TokenAccount(limits, None)
    acme = tenant(tokens_per_second=100, burst_seconds=10)
    charge = await account.take(acme, SIZE)
    assert charge.expected == 100 + FIRST_GUESS
    charge.use(usage(), frames=50)
    charge.close()
    charge.close()
    assert limits.expected_tokens(acme, SIZE) < charge.expected  # it has learned
    limits.take_tokens(acme, 850)
    assert refusal(lambda: limits.take_tokens(acme, 1)).message.startswith("tokens_per_second")


async def test_a_request_that_no_node_worked_on_costs_nothing():
    limits = LocalLimits(Clock())
    acme = tenant(tokens_per_second=100, burst_seconds=10)
    (await TokenAccount(limits, None).take(acme, SIZE)).close()
    limits.take_tokens(acme, 1000)  # all that it may have at once
    assert refusal(lambda: limits.take_tokens(acme, 1)).retry_after == 0.01


async def test_one_that_broke_off_costs_its_prompt_and_what_came():
    limits = LocalLimits(Clock())
    acme = tenant(tokens_per_second=100, burst_seconds=10)
    charge = await TokenAccount(limits, None).take(acme, SIZE)
    charge.use(pb.Usage(), frames=40)
    charge.close()
    limits.take_tokens(acme, 860)
    assert refusal(lambda: limits.take_tokens(acme, 1)).retry_after == 0.01
