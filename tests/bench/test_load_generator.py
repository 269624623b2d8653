"""When requests are sent, from when latencies count, and how the generator judges itself."""

import asyncio
import time
from itertools import pairwise

import pytest

from bench.load.config import LoadConfig
from bench.load.generator import Generator
from bench.load.outcome import INTERRUPTED, UNSENT, Outcome, RequestFailedError
from bench.load.plan import make_plan
from bench.load.vitals import Vitals
from tests.router.fleet_fixture import eventually

SIZES = {"prefix_tokens": 4, "prompt_tokens": 4, "output_tokens": 3, "think": 0.0}


class Answers:
    """A sender that takes `seconds`, fails those with a number in `failing`, and holds back those
    in `held` until `release` is set.
    """

    def __init__(self, seconds=0.0, failing=(), blocking=0.0, held=()):
        self.seconds, self.failing, self.blocking, self.held = seconds, failing, blocking, held
        self.running = self.most_running = 0
        self.release = asyncio.Event()

    def prepare(self, turn):
        return str(turn.number).encode()

    async def send(self, body, outcome, clock):
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        time.sleep(self.blocking)  # noqa: ASYNC251  # a generator that is too slow
        try:
            await asyncio.sleep(self.seconds)
            if int(body) in self.held:
                await self.release.wait()
        finally:
            self.running -= 1
        if int(body) in self.failing:
            raise RequestFailedError("UNAVAILABLE", "as told")
        outcome.frame(clock(), 3)


def generator(sender, **fields):
    config = LoadConfig(**{**SIZES, **fields})
    return Generator(make_plan(config), sender, config)


async def test_an_open_loop_does_not_wait_for_answers():
    sender = Answers(held=range(20))
    load = generator(sender, arrivals="constant", rate=100, requests=20)
    task = asyncio.create_task(load.run())
    await eventually(lambda: sender.running == 20, within=30)
    sender.release.set()
    await task
    assert [each.planned for each in load.outcomes] == [n / 100 for n in range(20)]
    assert min(each.lag for each in load.outcomes) >= 0


async def test_what_is_sent_late_has_waited():
    """The event loop stands still for 50 ms at each request, though one is due every 10 ms."""
    load = generator(Answers(blocking=0.05), arrivals="constant", rate=100, requests=10)
    await load.run()
    last = load.outcomes[-1]
    assert last.planned == 0.09
    assert last.lag > 0.3
    assert last.ttft >= last.lag
    assert last.e2e >= last.ttft


async def test_a_closed_loop_has_so_many_at_once_and_no_lag():
    sender = Answers(seconds=0.02)
    load = generator(sender, arrivals="closed", concurrency=3, requests=12)
    await load.run()
    assert sender.most_running == 3
    assert len(load.outcomes) == 12
    assert max(each.lag for each in load.outcomes) < 0.2


async def test_a_turn_waits_for_the_answer_before_it():
    load = generator(Answers(seconds=0.02), workload="chat", turns=3, requests=6, rate=1000)
    await load.run()
    by_number = sorted(load.outcomes, key=lambda each: each.turn.number)
    for before, after in pairwise(by_number):
        if after.turn.after == before.turn.number:
            assert before.ended == pytest.approx(after.planned)
            assert after.sent >= before.ended


async def test_what_follows_a_failure_is_not_sent():
    sender = Answers(failing={1})
    load = generator(sender, workload="chat", turns=4, requests=8, rate=1000)
    await load.run()
    states = [each.status for each in sorted(load.outcomes, key=lambda each: each.turn.number)]
    assert states == ["OK", "UNAVAILABLE", UNSENT, UNSENT, "OK", "OK", "OK", "OK"]
    assert load.tally.answered == 5
    assert load.tally.failed == 1


async def test_stopping_keeps_what_is_known():
    sender = Answers(held=range(2, 100))
    load = generator(sender, arrivals="constant", rate=50, requests=1000)
    task = asyncio.create_task(load.run())
    await eventually(lambda: sender.running >= 2, within=30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    states = [each.status for each in load.outcomes]
    assert len(states) == 1000
    assert {"OK", INTERRUPTED, UNSENT} == set(states)
    assert load.tally.in_flight == 0


async def test_an_unexpected_error_ends_one_request_only():
    class Broken(Answers):
        async def send(self, body, outcome, clock):
            if body == b"3":
                raise KeyError("usage")
            await super().send(body, outcome, clock)

    load = generator(Broken(), rate=1000, requests=6)
    await load.run()
    assert sorted(each.status for each in load.outcomes) == ["KeyError", *["OK"] * 5]


def test_tokens_that_come_together_share_the_gap():
    outcome = Outcome(make_plan(LoadConfig(requests=1)).turns[0], planned=1.0)
    for now, tokens in ((2.0, 1), (2.5, 1), (3.5, 4)):
        outcome.frame(now, tokens)
    assert outcome.ttft == 1.0
    assert list(outcome.gaps) == [0.5, 0.25, 0.25, 0.25, 0.25]
    assert outcome.mean_gap == pytest.approx(1.5 / 5)


async def test_vitals_tell_a_loop_that_stands_still_and_the_worst_second():
    now, cpu = [0.0], [0.0]
    vitals = Vitals(clock=lambda: now[0], cpu=lambda: cpu[0])
    watching = asyncio.create_task(vitals.watch())

    async def pass_time(seconds, busy):
        now[0] += seconds
        cpu[0] += busy
        await asyncio.sleep(0.12)  # in which the watch wakes up

    await asyncio.sleep(0)
    await pass_time(0.06, 0.0)
    await pass_time(1.05, 0.9)
    await pass_time(2.0, 0.1)
    watching.cancel()
    assert len(vitals.lags) == pytest.approx(3.11 / 0.05, abs=1)
    assert list(vitals.lags)[:3] == pytest.approx([0.01, 1.01, 0.96])
    assert max(vitals.lags) == pytest.approx(1.96)
    assert vitals.highest_cpu == pytest.approx(0.9 / 1.11)
    assert vitals.cpu == pytest.approx(1.0 / 3.11)
