"""Panels as an operator reads them: what is asked, in what unit, and from where on it is bad.

Every panel has a description: what it shows, and what to do where it looks wrong.
"""

from collections.abc import Sequence

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DataTransformerConfig,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.units import PercentUnit

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
GREEN, YELLOW, ORANGE, RED = "green", "yellow", "orange", "red"
NEUTRAL = ((None, "blue"),)
Steps = Sequence[tuple[float | None, str]]  # from which value on which colour; None: from the start

MEMORY: Steps = ((None, GREEN), (0.70, YELLOW), (0.90, ORANGE), (0.95, RED))  # as rules.yml
NONE_IS_GOOD: Steps = ((None, GREEN), (1, RED))

Query = tuple[str, str]  # an expression, and what its series are called


def graph(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    steps: Steps = (),
    stacked: bool = False,
    width: int = 8,
) -> timeseries.Panel:
    """Lines over time; `steps` are drawn as lines across. Shares go from 0 to 1."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .span(width)
        .height(8)
        .min(0)
        .fill_opacity(20 if stacked else 8)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(
            common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
        )
    )
    if unit == PercentUnit and not steps:
        panel.max(1)
    if stacked:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    if steps:
        panel.thresholds(_thresholds(steps)).thresholds_style(
            common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
        )
    return panel.targets([_target(place, query) for place, query in enumerate(queries)])


def number(
    title: str,
    description: str,
    unit: str,
    expression: str,
    steps: Steps = NEUTRAL,
    width: int = 4,
    more: str | None = None,
) -> stat.Panel:
    """One value, coloured by `steps`, with its course behind it. `more`: the dashboard about it."""
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .span(width)
        .height(4)
        .no_value("none yet")
        .thresholds(_thresholds(steps))
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
        .color_mode(BigValueColorMode.VALUE)
        .graph_mode(BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .targets([_target(0, (expression, title))])
    )
    if more is not None:
        panel.links([dashboard.DashboardLink("More").url(f"/d/{more}").keep_time(True)])
    return panel


def labels_table(
    title: str, description: str, expression: str, columns: Sequence[str], width: int = 24
) -> table.Panel:
    """The labels of each series now, a row each."""
    newest = prometheus.Dataquery().expr(expression).instant().format(PromQueryFormat.TABLE)
    places = {name: place for place, name in enumerate(columns)}
    order = {"includeByName": dict.fromkeys(columns, True), "indexByName": places}
    return (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .span(width)
        .height(7)
        .targets([newest.ref_id("A").datasource(SOURCE)])
        .with_transformation(DataTransformerConfig(id_val="organize", options=order))
    )


def _thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    made = [Threshold(value=value, color=color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(made)


def _target(place: int, query: Query) -> prometheus.Dataquery:
    expression, legend = query
    target = prometheus.Dataquery().expr(expression).legend_format(legend).range()
    return target.ref_id(chr(ord("A") + place)).datasource(SOURCE)
