"""All checks on a whole fleet."""

from kvmesh.doctor import fleet_checks, node_checks
from kvmesh.doctor.finding import Finding
from kvmesh.doctor.snapshot import Snapshot


def examine(fleet: Snapshot) -> list[Finding]:
    """What is found, the worst first."""
    found = [check(router, fleet) for router in fleet.routers for check in fleet_checks.CHECKS]
    for node in fleet.nodes:
        found += [finding for check in node_checks.CHECKS if (finding := check(node)) is not None]
    return sorted(found, key=lambda finding: -finding.level)
