"""The expressions that panels share.

Series of a router are filtered by $router, an instance; those of a node by $node, its name, which
`kvmesh_node_info` tells for each instance.
"""

RATE = "$__rate_interval"
NODES = 'on (instance) group_left (node) kvmesh_node_info{node=~"$node"}'
ROUTERS = 'instance=~"$router"'


def of_nodes(metric: str) -> str:
    """A gauge of each node, with the node's name."""
    return f"{metric} * {NODES}"


def of_routers(metric: str, matcher: str = "") -> str:
    return f"{metric}{{{_both(ROUTERS, matcher)}}}"


def known_nodes(metric: str, matcher: str = "") -> str:
    """What routers say of each node."""
    return of_routers(metric, _both('node=~"$node"', matcher))


def largest(expression: str, by: str = "") -> str:
    return f"{_over('max', by)} ({expression})"


def total(expression: str, by: str = "") -> str:
    return f"{_over('sum', by)} ({expression})"


def node_rate(counter: str, by: str = "") -> str:
    """A second, of all nodes together."""
    return total(f"rate({counter}[{RATE}]) * {NODES}", by)


def router_rate(counter: str, by: str = "", matcher: str = "") -> str:
    """A second, of all routers together."""
    return total(f"rate({of_routers(counter, matcher)}[{RATE}])", by)


def node_percentile(share: float, histogram: str) -> str:
    """Over all nodes."""
    return f"histogram_quantile({share}, {node_rate(f'{histogram}_bucket', 'le')})"


def router_percentile(share: float, histogram: str, by: str = "", matcher: str = "") -> str:
    """Over all routers."""
    rates = router_rate(f"{histogram}_bucket", _both("le", by), matcher)
    return f"histogram_quantile({share}, {rates})"


def of_all(part: str, whole: str) -> str:
    """A share; nothing while there is no whole."""
    return f"{part} / ({whole} > 0)"


def _over(how: str, by: str) -> str:
    return f"{how} by ({by})" if by else how


def _both(one: str, other: str) -> str:
    return ", ".join(each for each in (one, other) if each)
