"""Tenants of a router under test, and what its metrics say."""

import re

from tests.router.test_tenants import record, toml


def tenants_file(directory, **tenants):
    """A file in which each tenant's key is `key-NAME`; to be given as `tenants`."""
    path = directory / "tenants.toml"
    records = {name: record(f"key-{name}", **limits) for name, limits in tenants.items()}
    path.write_text(toml(**records))
    return str(path)


def who(name):
    return (("authorization", f"Bearer key-{name}"),)


async def metric(fleet, name, **labels):
    """Sum of the samples of kvmesh_router_`name` that have these labels."""
    text = (await fleet.http.get("/metrics")).text
    total = 0.0
    for line in text.splitlines():
        found = re.fullmatch(rf"kvmesh_router_{name}(\{{.*\}})? (\S+)", line)
        if found and all(f'{key}="{value}"' in line for key, value in labels.items()):
            total += float(found[2])
    return total


async def waiting(fleet):
    return await metric(fleet, "queue_depth")
