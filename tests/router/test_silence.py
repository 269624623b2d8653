"""Silent nodes are found by a clock that the test moves."""

import pytest

from router.pulse import Pulse
from router.silence import SilenceDetector


def detector():
    found = []
    silence = SilenceDetector(silent_after=2.0, dead_after=6.0)
    for name in ("a", "b"):
        silence.watch(
            name,
            lambda name=name: found.append(f"{name} silent"),
            lambda name=name: found.append(f"{name} dead"),
        )
    return silence, found


def pass_time(silence, seconds):
    for _ in range(round(seconds * 10)):
        silence.pass_time(0.1)


def test_who_says_nothing_is_silent_first_and_dead_later_each_told_once():
    silence, found = detector()
    pass_time(silence, 1.5)
    silence.heard("b")
    pass_time(silence, 0.4)
    assert found == []
    pass_time(silence, 0.2)
    assert found == ["a silent"]
    pass_time(silence, 4.0)
    assert found == ["a silent", "b silent", "a dead"]
    pass_time(silence, 9)
    assert found == ["a silent", "b silent", "a dead", "b dead"]


def test_a_silent_one_that_is_heard_of_lives_and_may_be_silent_again():
    silence, found = detector()
    silence.unwatch("b")
    for _ in range(2):
        pass_time(silence, 5)
        silence.heard("a")
    assert found == ["a silent", "a silent"]


def test_who_is_no_longer_watched_is_not_reported():
    silence, found = detector()
    silence.unwatch("a")
    silence.unwatch("a")
    pass_time(silence, 3)
    assert found == ["b silent"]


def test_our_own_standstill_is_nobodys_silence():
    passed = []
    pulse = Pulse(period=0.1)
    pulse.on_beat(passed.append)
    for now in (5.0, 5.1, 65.1, 65.2):  # the process was stopped for a minute
        pulse.beat(now)
    assert passed == pytest.approx([0.0, 0.1, 0.2, 0.1])
