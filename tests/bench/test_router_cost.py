"""What the router's benchmark measures, and that nothing is left behind."""

from bench.figures import Spread
from bench.proxy_cost import LEASES_AT_ONCE, Load, Passing, ProxyCost
from bench.routing_cost import BLOCKS, RoutingCost, measure_mirror, measure_routing_cost
from bench.stub_fleet import stub_fleet
from bench.usage import family


def test_the_parts_of_a_decision_are_within_the_whole():
    cost = measure_routing_cost(100, entries=20_000)
    assert [each.blocks for each in cost.decisions] == list(BLOCKS)
    for each in cost.decisions:
        assert 0 < each.match < each.place
        assert 0 < each.match_fresh < each.place
        assert 0 < each.keys < each.total
    small, large = cost.decisions
    assert 2 < large.keys / small.keys < 8  # four times the blocks
    assert len(cost.goals) == 4


def test_the_memory_of_a_mirror_is_that_of_its_entries():
    assert 50 < measure_mirror(20_000).bytes_an_entry < 200


def test_goals_are_missed_by_what_is_too_slow():
    slow, fast = (
        Passing(each, each, each, each, each)
        for each in (Spread((90.0, 70.0)), Spread((55.0, 300.0)))
    )
    assert [goal.met for goal in ProxyCost(slow, fast, 64, 5).goals] == [False, True, True]
    assert [goal.met for goal in ProxyCost(fast, slow, 64, 5).goals] == [True, True, True]
    assert isinstance(RoutingCost((), measure_mirror(1000)).as_json()["mirror"], dict)


async def test_streams_and_leases_pass_through_a_real_router_and_a_bare_one():
    async with stub_fleet() as fleet:
        for router in (fleet.router, fleet.bare):
            async with Load(router) as load:
                await load.streams(8, 3)
                await load.leases(8, load.route)
                assert await load.cpu(lambda: load.streams(16, 5)) >= 0
                carried = []
                with load.messages.counted(carried):
                    await load.leases(8, load.route_on_stream)
                    await load.steady_leases(80)
                assert 1 <= carried[0] <= LEASES_AT_ONCE
            assert len(family(router.pid)) == 1
