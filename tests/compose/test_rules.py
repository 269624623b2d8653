"""The rules of Prometheus: right as rules, and about what there is."""

import re

import pytest
import yaml

from kvmesh.cli import metrics_table
from tests.compose.project import ROOT, run
from tests.prometheus_fixture import require_prometheus

PROMETHEUS = ROOT / "compose" / "prometheus"
RULES = [
    rule
    for group in yaml.safe_load((PROMETHEUS / "rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
# Of a histogram and of a counter, as Prometheus stores them.
SUFFIX = re.compile(r"_(bucket|sum|count)$")


async def test_every_metric_that_a_rule_names_is_told_by_a_process():
    table = await metrics_table.whole_table()
    told = set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))
    named = {name for rule in RULES for name in re.findall(r"\bkvmesh_\w+", rule["expr"])}
    assert len(named) > 10
    assert {name for name in named if SUFFIX.sub("", name) not in told} == set()


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_has_a_section_in_the_runbook(rule):
    text = (ROOT / "docs" / "runbook.md").read_text()
    sections = {title.lower() for title in re.findall(r"^## (\w+)$", text, re.MULTILINE)}
    file, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert file == "docs/runbook.md"
    assert anchor in sections
    assert rule["labels"]["severity"] in ("info", "warning", "critical")


def test_every_alert_is_tested():
    tests = yaml.safe_load((PROMETHEUS / "rules_test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test.get("alert_rule_test", ())]
    fired = {case["alertname"] for case in cases if case["exp_alerts"]}
    assert fired == {rule["alert"] for rule in ALERTS}


@pytest.mark.parametrize("command", ["check config prometheus.yml", "test rules rules_test.yml"])
def test_promtool_agrees(command):
    require_prometheus()
    run("promtool", *command.split(), timeout=60, cwd=PROMETHEUS)


def test_over_tls_the_same_is_scraped():
    plain, tls = (
        yaml.safe_load((PROMETHEUS / name).read_text())
        for name in ("prometheus.yml", "prometheus.tls.yml")
    )
    for job in tls["scrape_configs"]:
        assert job.pop("scheme") == "https"
        assert job.pop("tls_config")["server_name"] == job["job_name"]
    assert tls == plain
