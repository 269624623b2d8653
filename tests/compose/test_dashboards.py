"""Grafana's dashboards as files. tests/compose/test_selectors.py asks for what they show."""

import copy
import json

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from compose.grafana import build
from tests.compose.project import ROOT

register_default_plugins()  # the types of panels
GRAFANA = ROOT / "compose" / "grafana"
DASHBOARDS = {
    path.stem: json.loads(path.read_text()) for path in (GRAFANA / "dashboards").glob("*.json")
}


@pytest.mark.parametrize(("name", "board"), DASHBOARDS.items())
def test_a_dashboard_says_what_its_panels_are_about(name, board):
    assert board["uid"] == f"kvmesh-{name}"
    assert [each["name"] for each in board["templating"]["list"]] == [
        "datasource",
        "router",
        "node",
    ]
    assert board["links"][0]["tags"] == board["tags"] == ["kvmesh"]
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in panels:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["type"] == "table" or panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        where = panel["gridPos"]
        assert where["x"] + where["w"] <= 24, panel["title"]


def test_there_are_four():
    assert DASHBOARDS.keys() == {"fleet", "memory", "cache", "latency"}


@pytest.mark.parametrize("board", DASHBOARDS.values(), ids=DASHBOARDS)
def test_a_dashboard_has_the_fields_that_grafana_knows(board):
    """As its own types read and write them: what they do not know is lost."""
    read = Dashboard.from_json(copy.deepcopy(board))
    assert json.loads(json.dumps(read, cls=JSONEncoder)) == board


def test_links_lead_to_dashboards_that_are_there():
    known = {board["uid"] for board in DASHBOARDS.values()}
    panels = [panel for board in DASHBOARDS.values() for panel in board["panels"]]
    led = {link["url"].removeprefix("/d/") for panel in panels for link in panel.get("links", ())}
    assert led == known - {"kvmesh-fleet"}


def test_drift_is_found(monkeypatch, tmp_path, capsys):
    assert build.main(["--check"]) == 0
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    build.main([])
    (tmp_path / "cache.json").write_text("{}")
    (tmp_path / "other.json").write_text("{}")
    assert build.main(["--check"]) == 1
    assert "cache.json, other.json: not what the code says" in capsys.readouterr().err


def test_what_is_provisioned_is_mounted():
    """The source that dashboards default to, and the folder that the provider reads."""
    compose = yaml.safe_load((ROOT / "compose" / "compose.yaml").read_text())
    mounts = dict(each.split(":")[:2] for each in compose["services"]["grafana"]["volumes"])
    mounted = {target: ROOT / "compose" / source for source, target in mounts.items()}
    provisioning = mounted["/etc/grafana/provisioning"]
    provider = yaml.safe_load((provisioning / "dashboards" / "kvmesh.yml").read_text())
    (folder,) = (each["options"]["path"] for each in provider["providers"])
    assert (mounted[folder] / "fleet.json").is_file()
    sources = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())
    (source,) = sources["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    scraping = yaml.safe_load((ROOT / "compose" / "prometheus" / "prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == scraping["global"]["scrape_interval"]
