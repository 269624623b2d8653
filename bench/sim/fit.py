"""Constants of step times by least squares."""

from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np

from bench.sim.measure import Sample
from bench.sim.step_model import CONSTANTS, Shape, StepModel


def fastest(samples: Iterable[Sample]) -> list[Sample]:
    """Of each shape: what else ran on the machine only ever makes a step longer."""
    least: dict[Shape, float] = {}
    for shape, seconds in samples:
        least[shape] = min(seconds, least.get(shape, seconds))
    return [Sample(shape, seconds) for shape, seconds in least.items()]


def fit_steps(samples: Sequence[Sample]) -> StepModel:
    """Least squares of relative errors, none of the constants below 0. Raises ValueError when the
    steps tell too little.
    """
    if len(samples) < 2 * len(CONSTANTS):
        raise ValueError(f"{len(samples)} steps are too few to fit {len(CONSTANTS)} constants")
    return _fit(samples)


def fit_error(model: StepModel, samples: Sequence[Sample]) -> float:
    """Median of the relative errors."""
    errors = (abs(model.seconds(each.shape) / each.seconds - 1) for each in samples)
    return median(errors)


def _fit(samples: Sequence[Sample]) -> StepModel:
    """Columns that would come out negative are left out, the worst one first."""
    seconds = np.array([each.seconds for each in samples])
    rows = np.array([(1, *each.shape) for each in samples]) / seconds[:, None]
    # Columns of one size: reads are counted in millions.
    sizes = np.linalg.norm(rows, axis=0)
    sizes[sizes == 0] = 1.0
    used = list(range(len(CONSTANTS)))
    while True:
        found = np.linalg.lstsq(rows[:, used] / sizes[used], np.ones(len(samples)), rcond=None)[0]
        if found.min() >= 0:
            break
        del used[int(found.argmin())]
    constants = dict.fromkeys(CONSTANTS, 0.0)
    constants.update({CONSTANTS[i]: float(v / sizes[i]) for i, v in zip(used, found, strict=True)})
    return StepModel(**constants)
