"""What `kvmesh plan` says to do: each way holds when it is taken."""

import re

import pytest

from cache_node.config import NodeConfig
from cache_node.plan.find_shape import find_shape
from cache_node.plan.hardware import GIB, Hardware, find_card
from cache_node.plan.plan import make_plan
from kvmesh.cli.plan.advice import fits, recommend, ways_to_fit
from kvmesh.cli.presets import PRESETS

CASES = {
    "a small model on a CPU": ("smollm2-135m", None, {}),
    "one that needs twice its pool": ("smollm2-135m", None, {"max_model_len": 4096}),
    "one that needs a second card": ("llama-3-70b", "h200", {"max_model_len": 8192}),
    "one that no card holds": ("llama-3.1-405b", "h100", {"max_model_len": 8192}),
    "one that is far too long": ("llama-3.1-405b", "h100", {}),
    "one with windows": ("gemma-3-27b", "h100", {"max_model_len": 32768}),
    "one with too few blocks": ("smollm2-135m", None, {"num_blocks": 100, "block_size": 32}),
    "a share of memory": ("smollm2-135m", None, {"kv_cache_ram_share": 0.01}),
    "a pool that is small for its card": ("llama-3-8b", "h100", {"kv_cache_bytes": 10**9}),
    "one larger than the machine": ("llama-3-70b", None, {"max_model_len": 8192}),
}


def plan(model, gpu, flags, tp=1):
    card = None if gpu is None else find_card(gpu)
    hardware = Hardware(card=card, ram=24 * GIB, tp=tp, gpus=tp)
    return make_plan(find_shape(model), hardware, NodeConfig(**flags))


@pytest.mark.parametrize(("model", "gpu", "flags"), CASES.values(), ids=CASES)
def test_each_way_makes_it_fit(model, gpu, flags):
    found = plan(model, gpu, flags)
    assert not fits(found, 16)
    ways = [way for way in ways_to_fit(found, 16) if way.startswith("--")]
    assert ways or gpu is None
    for way in ways:
        if "instead of" in way:
            flags = {}
        taken = dict(re.findall(r"--([a-z-]+) (\S+?)(?=:| --| instead)", way))
        tp = int(taken.pop("tp", 1))
        changed = {
            name.replace("-", "_"): int(value) if value.isdigit() else value
            for name, value in taken.items()
        }
        other = plan(model, gpu, {**flags, **changed}, tp)
        assert fits(other, 1 if way.endswith("one request at a time") else 16), way


def test_what_fits_needs_no_advice():
    found = plan("smollm2-135m", None, {"max_model_len": 1024})
    assert fits(found, 16)
    assert ways_to_fit(found, 16) == []


def test_a_model_that_no_machine_memory_holds_is_told_how_much_it_takes():
    ways = ways_to_fit(plan(*CASES["one larger than the machine"]), 16)
    assert len(ways) == 1
    assert ways[0].startswith("a machine with 214 GiB, and --kv-cache-bytes 42954915840")


@pytest.mark.parametrize(
    ("model", "gpu", "flags"),
    [("smollm2-135m", None, {}), ("llama-3-8b", "h100", {"max_model_len": 8192})],
)
def test_recommended_flags_have_room_for_what_they_promise(model, gpu, flags):
    found = recommend(plan(model, gpu, flags))
    flags = {}  # all are in what is recommended
    assert [each.preset for each in found] == list(PRESETS)
    for each in found:
        given = dict(zip(each.flags[::2], each.flags[1::2], strict=True))
        known = {n: v for n, v in PRESETS[each.preset].values.items() if hasattr(NodeConfig(), n)}
        known |= {name[2:].replace("-", "_"): int(value) for name, value in given.items()}
        other = plan(model, gpu, {**flags, **known})
        assert other.refusal is None
        assert fits(other, min(other.config.max_num_seqs, each.max_concurrency))
        assert other.concurrency(other.max_model_len) >= other.config.max_num_seqs


def test_a_model_that_does_not_fit_has_no_flags_recommended():
    assert recommend(plan(*CASES["one that no card holds"])) == []
