"""Silent nodes are found by a clock that the test moves."""

from router.silence import SilenceDetector


def detector():
    found = []
    silence = SilenceDetector(limit=2.0, period=0.1)
    for name in ("a", "b"):
        silence.watch(name, lambda name=name: found.append(name))
    silence.check(0.0)
    return silence, found


def tick(silence, start, end):
    for step in range(int(start * 10) + 1, int(end * 10) + 1):
        silence.check(step / 10)


def test_who_says_nothing_for_the_limit_is_reported_once():
    silence, found = detector()
    tick(silence, 0, 1.5)
    silence.heard("b")
    tick(silence, 1.5, 1.9)
    assert found == []
    tick(silence, 1.9, 2.2)
    assert found == ["a"]
    tick(silence, 2.2, 9)
    assert found == ["a", "b"]


def test_who_is_no_longer_watched_is_not_reported():
    silence, found = detector()
    silence.unwatch("a")
    silence.unwatch("a")
    tick(silence, 0, 3)
    assert found == ["b"]


def test_our_own_standstill_is_nobodys_silence():
    silence, found = detector()
    silence.check(60.0)  # the process was stopped for a minute
    silence.heard("a")
    silence.heard("b")
    tick(silence, 60, 61)
    assert found == []
