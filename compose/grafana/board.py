"""What all dashboards have in common: variables, links between them, rows of panels."""

from collections.abc import Mapping, Sequence
from itertools import count

from grafana_foundation_sdk.builders import dashboard, stat, table, timeseries
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from .panels import SOURCE

Panels = Sequence[timeseries.Panel | stat.Panel | table.Panel]
TAG = "kvmesh"


def board(
    uid: str, title: str, question: str | None, rows: Mapping[str, Panels]
) -> dashboard.Dashboard:
    """Each row is one question of the operator, and its panels the answer."""
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(question or "")
        .tags([TAG])
        .readonly()
        .time("now-1h", "now")
        .refresh("10s")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(_others())
        .with_variable(_source())
        .with_variable(_every("router", "Router", "kvmesh_router_requests_in_flight", "instance"))
        .with_variable(_every("node", "Node", "kvmesh_node_info", "node"))
    )
    ids = count(1)  # of rows and panels: links to a panel hold it
    for name, panels in rows.items():
        made.with_row(dashboard.Row(name).id(next(ids)))
        for panel in panels:
            made.with_panel(panel.id(next(ids)))
    return made


def _others() -> dashboard.DashboardLink:
    link = dashboard.DashboardLink("Dashboards").type(DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.keep_time(True).include_vars(True)


def _source() -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")


def _every(name: str, label: str, metric: str, of: str) -> dashboard.QueryVariable:
    """All values of a label, of which any may be chosen."""
    everything = VariableOption(text="All", value="$__all", selected=True)
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(f"label_values({metric}, {of})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.NATURAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".+")
        .current(everything)
    )
