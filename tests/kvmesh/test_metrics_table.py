"""docs/metrics.md is what the processes tell."""

from kvmesh.cli import metrics_table


async def test_the_table_is_what_the_code_registers():
    assert await metrics_table.whole_table() == metrics_table.TABLE.read_text()


async def test_both_processes_are_in_it_with_labels_and_units():
    text = await metrics_table.whole_table()
    assert "| `kvmesh_router_requests_total` | counter | `endpoint`, `code` |" in text
    assert "| `kvmesh_num_preemptions_total` | counter | `kind` |" in text
    assert "process_cpu" not in text


def test_a_table_that_is_old_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(metrics_table, "TABLE", tmp_path / "metrics.md")
    metrics_table.TABLE.write_text("# Metrics\n")
    assert metrics_table.main(["--check"]) == 1
    assert "make metrics" in capsys.readouterr().err
    assert metrics_table.main([]) == 0
    assert metrics_table.main(["--check"]) == 0
