"""Recent speeds of the node, in tokens per second."""

from cache_node.step_plan import StepPlan

SMOOTHING = 0.2  # share of the newest step in the moving average


class SpeedMeter:
    """Exponential moving averages over the steps that only prefill, and over those that only
    decode.
    """

    def __init__(self) -> None:
        self.prefill = 0.0
        self.decode = 0.0

    def record(self, plan: StepPlan, seconds: float) -> None:
        if seconds <= 0:
            return
        decoding = [len(row.token_ids) == 1 for row in plan.rows]
        if all(decoding):
            self.decode = _blend(self.decode, plan.num_tokens / seconds)
        elif not any(decoding):
            self.prefill = _blend(self.prefill, plan.num_tokens / seconds)


def _blend(average: float, newest: float) -> float:
    return newest if average == 0 else average + SMOOTHING * (newest - average)
