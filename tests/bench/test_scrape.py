"""`kvmesh bench scrape` in short: a live node, scraped."""

from bench import scrape
from bench.random_model import write_random_model


def test_turns_with_and_without_scrapes_are_compared(smollm2, tmp_path, monkeypatch):
    monkeypatch.setattr(scrape, "STREAMS", 4)
    found = scrape.measure_scrape(write_random_model(tmp_path, smollm2), 1)
    assert 0 < found.never.median < 1
    assert found.size > 1000
    assert len(found.scrape.values) >= 2  # one of the usual turn, one of the other
    [goal] = found.goals
    assert goal.value < abs(found.often_share) * scrape.OFTEN / scrape.USUAL + 1e-9
