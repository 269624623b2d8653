"""The soak, shorter than `kvmesh bench soak` runs it."""

import pytest

from bench.soak import WARM_UP, soak


@pytest.mark.timeout(300)
def test_requests_left_at_random_moments_leak_nothing(smollm2, capfd):
    result = soak(WARM_UP + 1000, smollm2, seed=1)
    assert [str(goal) for goal in result.goals if not goal.met] == []
    assert set(result.ends) >= {"read to the end", "cancelled", "aborted", "left unread"}
    assert sum(result.ends.values()) == result.requests
    assert "rpc_failed" not in capfd.readouterr().err
