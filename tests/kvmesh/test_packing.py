"""Token ids on the wire."""

import random

import pytest

from kvmesh.packing import all_below, pack_tokens


@pytest.mark.parametrize("count", [0, 1, 3, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("limit", [1, 255, 256, 49_152, 128_256, 2**31])
def test_one_id_that_is_not_below_the_limit_is_found_wherever_it_is(count, limit):
    rng = random.Random(count * limit)
    ids = [rng.choice((0, limit - 1, rng.randrange(limit))) for _ in range(count)]
    assert all_below(pack_tokens(ids), limit)
    for wrong in (limit, limit + 1, 2**31, 2**32 - 1):
        if count:
            place = rng.choice((0, count - 1, rng.randrange(count)))
            changed = [*ids[:place], wrong, *ids[place + 1 :]]
            assert not all_below(pack_tokens(changed), limit)
