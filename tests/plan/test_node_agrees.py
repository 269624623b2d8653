"""What `kvmesh plan` says of a node, and what the started node says of itself: the same blocks."""

import json
import os
import subprocess
import sys

import pytest

KVMESH = (sys.executable, "-m", "kvmesh.cli")
FLAGS = {
    "bfloat16": ["--kv-cache-bytes", "300000001"],
    "float32": ["--dtype", "float32", "--kv-cache-bytes", "100000001", "--max-model-len", "2000"],
    "fp8": ["--kv-cache-dtype", "fp8", "--num-blocks", "777"],
    "int8": ["--preset", "rag", "--kv-cache-bytes", "100000001", "--swap-space", "0.05"],
    "int4": ["--kv-cache-dtype", "int4", "--kv-cache-ram-share", "0.01", "--block-size", "24"],
}


@pytest.mark.parametrize("dtype", FLAGS)
def test_the_plan_has_the_blocks_of_a_started_node(smollm2, dtype):
    flags = ["--device", "cpu", "--model", str(smollm2), *FLAGS[dtype]]
    ready = ready_line([*KVMESH, "node", "--port", "0", *flags])
    plan = json.loads(run([*KVMESH, "plan", str(smollm2), *FLAGS[dtype], "--json"]))
    assert plan["kv"]["dtype"] == dtype
    assert plan["refusal"] is None
    assert {
        "kv_blocks": plan["blocks"],
        "cpu_blocks": plan["cpu_blocks"],
        "kv_cache_tokens": plan["tokens"],
        "block_size": plan["kv"]["block_size"],
        "kv_bytes_per_token": plan["kv"]["bytes_per_token"],
        "max_model_len": plan["request"]["max_model_len"],
    }.items() <= ready.items()


def test_a_node_that_would_not_start_is_told_with_the_node_s_own_words(smollm2):
    flags = ["--kv-cache-bytes", "50000000"]
    plan = json.loads(run([*KVMESH, "plan", str(smollm2), *flags, "--json"]))
    refused = lines([*KVMESH, "node", "--port", "0", "--model", str(smollm2), *flags])
    assert plan["refusal"] == next(each["reason"] for each in refused if "reason" in each)


def run(command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def ready_line(command):
    return next(line for line in lines(command) if line["event"] == "ready")


def lines(command):
    """The log of a process, which is ended when enough was read."""
    environment = {**os.environ, "KVMESH_LOG_FORMAT": "json"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield from (json.loads(line) for line in process.stderr if line.startswith("{"))
        finally:
            process.kill()
