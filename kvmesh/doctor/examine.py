"""All checks on a whole fleet."""

from collections.abc import Callable

from kvmesh.doctor import fleet_checks, node_checks
from kvmesh.doctor.finding import Finding, Level
from kvmesh.doctor.snapshot import Snapshot


def examine(fleet: Snapshot) -> list[Finding]:
    """What is found, the worst first."""
    told = [
        _told(f"router {router.address}", check, router, fleet)
        for router in fleet.routers
        for check in fleet_checks.CHECKS
    ]
    told += [_told(node.name, check, node) for node in fleet.nodes for check in node_checks.CHECKS]
    found = [finding for finding in told if finding is not None]
    return sorted(found, key=lambda finding: -finding.level)


def _told(where: str, check: Callable[..., Finding | None], *of: object) -> Finding | None:
    """What the check says; metrics of another version may lack labels, or have others."""
    try:
        return check(*of)
    except (LookupError, ValueError, ArithmeticError) as error:
        return Finding(
            check=check.__name__.replace("_", "-"),
            where=where,
            level=Level.ADVICE,
            finding="cannot be told: the metrics are not as this version of kvmesh writes them",
            evidence=f"{type(error).__name__}: {error}",
            change="the same version of kvmesh here and there",
        )
