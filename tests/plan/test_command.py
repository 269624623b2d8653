"""`kvmesh plan` as a user meets it."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from kvmesh.cli.main import app
from kvmesh.cli.presets import PRESETS
from tests.cache_node.model.gguf_file import write_gguf
from tests.tiny_model import save_tiny

LLAMA = ("llama-3-70b", "--max-model-len", "8192", "--concurrency", "16")


def run(*arguments, code=0, **environment):
    environment = {"COLUMNS": "200", "KVMESH_LOG_FORMAT": "console"} | environment
    result = CliRunner(env=environment).invoke(app, ["plan", *arguments], prog_name="kvmesh")
    assert result.exit_code == code, result.output
    return result


def plan(*arguments, **environment):
    return json.loads(run(*arguments, "--json", **environment).stdout)


def text(*arguments):
    return " ".join(run(*arguments).stdout.split())


def test_the_command_of_the_docs_has_the_published_figure():
    found = plan(*LLAMA)
    assert found["request"]["kv_bytes"] == 42_949_672_960
    assert found["kv"]["bytes_per_token"] == 327_680
    assert found["model"]["weight_bytes"] == 2 * 70_553_706_496


def test_keys_for_programs_stay():
    assert list(plan(*LLAMA)) == [
        "model",
        "hardware",
        "kv",
        "blocks",
        "cpu_blocks",
        "tokens",
        "request",
        "max_concurrency",
        "longest_at_concurrency",
        "windows_freed",
        "refusal",
        "ways_to_fit",
        "recommended",
        "sweep",
        "trace",
    ]


def test_the_report_shows_each_sum_with_its_factors():
    shown = text(*LLAMA, "--gpu", "h200", "--gpus", "2", "--tp", "2")
    for line in (
        "2 (key, value) × 80 layers × 8 KV heads × 128 elements × 2 bytes (bfloat16) = 327,680",
        "16 × 512 blocks × 5,242,880 bytes = 42,949,672,960 bytes (40.00 GiB)",
        "70,553,706,496 × 2 bytes = 141,107,412,992 bytes",
        "✓ at once 46 of 8,192 tokens, 16 asked",
        "a node runs on one GPU today",
    ):
        assert line in shown, line


def test_it_says_what_a_node_does_not_do_beside_what_the_model_allows():
    latent = text("deepseek-v3", "--gpu", "h200", "--tp", "8")
    assert "61 layers × (512 latent + 64 rotated) × 2 bytes (bfloat16) = 70,272 bytes" in latent
    assert "✗ not served" in latent
    assert "each of the tp GPUs holds all of it" in latent
    windowed = text("gemma-3-27b", "--gpu", "h100", "--max-model-len", "32768")
    assert "today 15.50 GiB for 32,768 tokens: a node keeps all blocks of a request" in windowed
    assert "with windows freed 2.91 GiB, 6 at once" in windowed
    assert "today" not in text("llama-3-8b", "--gpu", "h100", "--max-model-len", "8192")


def test_scales_of_a_quantised_cache_are_part_of_the_sum():
    shown = text("smollm2-135m", "--kv-cache-dtype", "int8")
    assert "8 bits (int8) = 11,520 bytes scales 180 × 2 = 360 a token 11,880 bytes" in shown


def test_every_preset_is_recommended_with_what_it_sets():
    shown, data = text("--max-model-len", "2048"), plan("--max-model-len", "2048")
    assert list(data["recommended"]) == list(PRESETS)
    for name, preset in PRESETS.items():
        assert f"--preset {name} --max-model-len 2048 --kv-cache-bytes" in shown
        assert data["recommended"][name]["preset"] == dict(preset.values)
        for field, value in preset.values.items():
            assert f"--{field.replace('_', '-')} {value}" in shown


def test_a_preset_is_planned_for_as_a_node_would_take_it():
    with_preset = run("--preset", "rag", "--kv-cache-bytes", "100000000", "--json")
    by_hand = plan("--kv-cache-dtype", "int8", "--swap-space", "4", "--kv-cache-bytes", "100000000")
    found = json.loads(with_preset.stdout)
    assert (found["blocks"], found["cpu_blocks"]) == (by_hand["blocks"], by_hand["cpu_blocks"])
    assert "preset rag sets --kv-cache-dtype int8" in with_preset.stderr
    own = plan("--preset", "rag", KVMESH_KV_CACHE_DTYPE="fp8")
    assert own["kv"]["dtype"] == "fp8"


def test_a_directory_and_a_gguf_file_give_the_same_plan(tmp_path):
    directory = save_tiny(tmp_path / "model")
    gguf = write_gguf(tmp_path / "model.gguf", directory)
    found = [plan(str(path), "--kv-cache-bytes", "10000000") for path in (directory, gguf)]
    for each in found:
        each["model"].pop("source")
    assert found[0] == found[1]
    assert found[0]["kv"]["bytes_per_token"] == 2 * 3 * 2 * 8 * 2


def test_a_sweep_has_every_length_for_every_type(tmp_path):
    plot = tmp_path / "sweep.png"
    flags = ("llama-3-8b", "--gpu", "h100", "--sweep")
    shown, data = text(*flags, "--plot", str(plot)), plan(*flags)
    assert data["sweep"]["lengths"] == [1024, 2048, 4096, 8192]
    assert list(data["sweep"]["max_concurrency"]) == ["bfloat16", "fp8", "int8", "int4"]
    for counts in data["sweep"]["max_concurrency"].values():
        assert counts == sorted(counts, reverse=True)
        assert all(f"{count:,}" in shown for count in counts)
    assert data["sweep"]["max_concurrency"]["bfloat16"][-1] == data["max_concurrency"]
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def trace(tmp_path):
    """Two chats that take turns: each is found again where two of them fit."""
    requests = [
        {
            "timestamp": 1000 * turn,
            "input_length": 512 * (turn + 2) + 1,
            "output_length": 10,
            "hash_ids": [100 * chat + i for i in range(turn + 2)] + [1000 * chat + turn],
        }
        for turn in range(4)
        for chat in (1, 2)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, requests)))
    return path


def test_a_trace_says_from_where_on_more_blocks_bring_little(trace, tmp_path):
    plot = tmp_path / "trace.png"
    flags = ("--trace", str(trace), "--concurrency", "1")
    shown, data = text(*flags, "--plot", str(plot)), plan(*flags)["trace"]
    chunk = 512 // 16
    assert data["distinct_blocks"] == 2 * 5 * chunk
    hit = 2 * (2 + 3 + 4) * 512
    assert data["best_hit_share"] == pytest.approx(hit / data["prompt_tokens"])
    shares = [point["hit_share"] for point in data["points"]]
    assert shares == sorted(shares)
    assert data["flat_hit_share"] >= 0.95 * data["best_hit_share"] > shares[0]
    assert data["recommended_blocks"] == data["flat_blocks"] + data["running_blocks"]
    assert f"--num-blocks {data['recommended_blocks'] + 1}" in shown
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("lama-3-70b",), "near it are llama-3-70b"),
        (("--trace", "no-such-file"), "no-such-file"),
        (("--sweep", "--plot", "/no/such/place.png"), "/no/such/place.png"),
        (("llama-3-70b", "--gpu", "h200", "--tp", "3"), "tp: must divide"),
    ],
    ids=str,
)
def test_what_cannot_be_planned_is_said_in_a_line(arguments, said):
    result = run(*arguments, code=1)
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_plot_is_written_under_its_name(tmp_path):
    plain, directory = tmp_path / "plain", tmp_path / "directory"
    directory.mkdir()
    run("--sweep", "--plot", str(plain))
    assert plain.read_bytes().startswith(b"\x89PNG")
    assert str(directory) in run("--sweep", "--plot", str(directory), code=1).stderr
    assert not (tmp_path / "directory.png").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--gpu", "h300"), "h200"),
        (("--ram", "nan"), "ram: must be above 0"),
        (("--ram", "-1"), "ram: must be above 0"),
        (("--concurrency", "0"), "--concurrency"),
        (("--block-size", "500"), "block_size"),
        (("--plot", "x.png"), "plot: needs sweep or trace"),
        (("--tp", "2"), "gpu: must name the card"),
    ],
    ids=str,
)
def test_a_wrong_value_is_named(arguments, named):
    assert named in run(*arguments, code=2).output


def test_a_directory_without_a_configuration_is_named(tmp_path):
    assert f"{tmp_path} has no config.json" in run(str(tmp_path), code=1).stderr


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": 10**30}, "num_hidden_layers must be at most"),
        ({"hidden_size": 10**400}, "hidden_size must be at most"),
        ({"quantization_config": ["x"]}, "a field is not of its type"),
        ({"architectures": [["x"]]}, "a field is not of its type"),
    ],
)
def test_a_configuration_that_no_model_has_is_said_in_a_line(tmp_path, changes, said):
    save_tiny(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    result = run(str(tmp_path), code=1)
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_configuration_that_says_too_little_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    assert "num_attention_heads must be a positive integer" in run(str(tmp_path), code=1).stderr


def test_a_command_line_without_a_node_s_packages_has_all_other_commands():
    code = "import sys, kvmesh.cli.main; print({'safetensors', 'gguf', 'numpy'} & {*sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert found.stdout.strip() == b"set()"


def test_another_machine_s_memory_may_be_planned_for():
    flags = ("--ram", "100", "--kv-cache-ram-share", "0.5")
    found = plan("llama-3-8b", *flags)
    assert found["hardware"]["ram_bytes"] == 100 << 30
    assert found["blocks"] == (50 << 30) // found["kv"]["bytes_per_block"] - 1
