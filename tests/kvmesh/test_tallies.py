"""What the router counts reads as if prometheus-client had counted it."""

import random

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client import metrics as prometheus

from kvmesh.tallies import Distribution, Tally

BOUNDS = (0.001, 0.5, 1, 25)


def test_a_scrape_is_that_of_the_same_metrics_of_prometheus_client(monkeypatch):
    monkeypatch.setattr(prometheus, "_use_created", False)
    rng, ours, theirs = random.Random(1), CollectorRegistry(), CollectorRegistry()
    tally, plain = Tally(ours, "a", "A", "x", "y"), Tally(ours, "b", "B")
    spread, labelled = (
        Distribution(ours, "c", "C", BOUNDS),
        Distribution(ours, "d", "D", BOUNDS, "x"),
    )
    counter, alone = (
        Counter("a", "A", ["x", "y"], registry=theirs),
        Counter("b", "B", registry=theirs),
    )
    histogram = Histogram("c", "C", buckets=BOUNDS, registry=theirs)
    by_label = Histogram("d", "D", ["x"], buckets=BOUNDS, registry=theirs)
    assert generate_latest(ours) == generate_latest(theirs)
    for _ in range(200):
        amount, word, other = rng.choice((0, 1, 2.5)), rng.choice("pq"), rng.choice("rs")
        tally.add(amount, word, other)
        counter.labels(word, other).inc(amount)
        plain.add()
        alone.inc()
        value = rng.choice((*BOUNDS, rng.uniform(0, 50)))
        spread.add(value)
        histogram.observe(value)
        labelled.add(value, word)
        by_label.labels(word).observe(value)
    assert generate_latest(ours) == generate_latest(theirs)
