"""An executor that computes nothing, so that what is measured is everything around it."""

from cache_node.sampling import Choice
from cache_node.step_plan import Row, RowResult, StepPlan

TOKEN = 7


class TrivialExecutor:
    """Chooses the same token for everybody, at once."""

    def run(self, plan: StepPlan) -> list[RowResult]:
        return [_result(row) for row in plan.rows]


def _result(row: Row) -> RowResult:
    return RowResult([Choice(TOKEN)] * len(row.samples))
