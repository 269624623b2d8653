"""Step times: constants are found again, and a simulation is held against what was measured."""

import json
import random
import time
from dataclasses import astuple, replace

import pytest

from bench.load.plan import make_plan
from bench.sim.default_fit import slowed
from bench.sim.fit import fastest, fit_error, fit_steps
from bench.sim.measure import Sample, TimedSteps
from bench.sim.node import NodeSpec
from bench.sim.simulate import SimFleet, simulate
from bench.sim.step_model import Profile, Shape, StepModel, profile_named
from bench.sim.validate import Real, loads, validate
from bench.trivial_executor import TrivialExecutor
from cache_node.step_plan import Row, StepPlan

MODEL = StepModel(0.02, 5e-4, 1e-7, 2e-3, 4e-6)
PROFILE = Profile(MODEL, 0.003, {"made": "up"})
BLOCKS = 1000


def samples(count=300, noise=0.0):
    draw = random.Random(3)
    for _ in range(count):
        tokens, rows = draw.choice([0, 16, 300, 1000]), draw.randint(0, 16)
        reads = tokens * draw.randint(tokens // 2, 2000)
        shape = Shape(tokens, reads, rows, rows * draw.randint(10, 1500))
        yield Sample(shape, MODEL.seconds(shape) * (1 + draw.uniform(0, noise)))


def real(load, profile):
    """As if a fleet with other step times had been measured."""
    plan = make_plan(load)
    spec = NodeSpec(num_blocks=BLOCKS, block_size=16)
    fleet = SimFleet(nodes=2, spec=spec, profile=profile, policy="prefix-aware", seed=9)
    result = simulate(plan, load, fleet)
    return Real(load, plan, result.outcomes, result.seconds)


def test_the_constants_of_steps_are_found_again():
    assert astuple(fit_steps(list(samples()))) == pytest.approx(astuple(MODEL), rel=1e-6)


def test_noise_is_survived_and_no_constant_is_negative():
    noisy = list(samples(noise=0.3))
    model = fit_steps(noisy)
    assert min(astuple(model)) >= 0
    assert fit_error(model, noisy) < 0.15


def test_of_a_shape_the_fastest_counts():
    shape, other = Shape(16, 136, 0, 0), Shape(0, 0, 1, 9)
    found = fastest([Sample(shape, 2.0), Sample(other, 5.0), Sample(shape, 1.0)])
    assert sorted(found) == [(other, 5.0), (shape, 1.0)]


def test_too_few_steps_are_refused():
    with pytest.raises(ValueError, match="too few"):
        fit_steps(list(samples(3)))


def test_a_step_is_the_cpu_time_since_the_one_before_and_no_waiting():
    def work():
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass

    timed = TimedSteps(TrivialExecutor())
    prompt, decode = Row([5] * 10, 6, (1,)), Row([5], 16, (1, 2))
    timed.run(StepPlan([prompt]))
    work()
    time.sleep(0.1)
    timed.run(StepPlan([decode, prompt]))
    assert [each.shape for each in timed.samples] == [
        Shape(prefill_tokens=10, prefill_reads=115),
        Shape(10, 115, decode_rows=1, decode_reads=17),
    ]
    assert 0.02 <= timed.samples[1].seconds < 0.1


def test_a_profile_is_written_and_read(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(PROFILE.as_json()))
    assert Profile.read(path) == PROFILE
    path.write_text(json.dumps(replace(PROFILE, path=-1.0).as_json()))
    with pytest.raises(ValueError, match="at least 0"):
        Profile.read(path)


def test_profiles_that_come_with_kvmesh_say_where_they_are_from():
    for name in ("accelerator", "cpu"):
        assert Profile.read(profile_named(name)).about


def test_a_slower_machine_is_found_in_one_load_and_predicts_another():
    fitted, predicted = (
        real(load, slowed(PROFILE, 1.7, 0.02)) for load in loads(requests=24, rate=1.0)
    )
    validation = validate(fitted, predicted, BLOCKS, PROFILE)
    assert validation.slowdown == pytest.approx(1.7, rel=0.1)
    assert validation.path == pytest.approx(0.02, abs=0.01)
    assert [goal.met for goal in validation.goals] == [True, True]
    assert validation.predicted.measured.hit_share > 0.3


def test_a_fleet_that_is_not_what_was_fitted_misses_the_goals():
    fitted, predicted = loads(requests=24, rate=1.0)
    validation = validate(
        real(fitted, PROFILE), real(predicted, slowed(PROFILE, 3.0, 0.003)), BLOCKS, PROFILE
    )
    assert [goal.met for goal in validation.goals][1] is False
