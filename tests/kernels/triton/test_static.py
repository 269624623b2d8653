"""What the compiler makes of the Triton kernels; `python -m kernels.triton.static` compares all."""

import json

import pytest

pytest.importorskip("triton")
from kernels.triton import static

# What a program may take: the CUDA programming guide's table of compute capabilities, and the LDS
# of a compute unit of CDNA 3.
SHARED_BYTES = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "gfx942": 64 << 10}
# Of a thread. On sm_90 and 100 nothing may be spilled; on the others a few words, which are needed
# before and after a loop, may be.
SPILLED_BYTES = {"sm_80": 16, "sm_90": 0, "sm_100": 0, "gfx942": 40}


@pytest.fixture
def reviewed():
    return json.loads(static.TABLE.read_text())


def test_no_reviewed_kernel_keeps_its_registers_in_memory(reviewed):
    spilled = {
        (name, chip): measures["spilled"]
        for name, chips in reviewed.items()
        for chip, measures in chips.items()
        if measures["spilled"] > SPILLED_BYTES[chip]
    }
    assert spilled == {}


def test_every_reviewed_kernel_fits_its_chip(reviewed):
    for chips in reviewed.values():
        for chip, measures in chips.items():
            assert measures["shared"] <= SHARED_BYTES[chip]


def test_attention_in_bfloat16_uses_tensor_cores_and_loads_of_128_bits(reviewed):
    attention = [
        name for name in reviewed if name.endswith((": decode_kernel", ": prefill_kernel"))
    ]
    in_bfloat16 = [name for name in attention if "float32" not in name]
    assert in_bfloat16
    for name in in_bfloat16:
        for chip, measures in reviewed[name].items():
            assert measures["wide_loads"] > 0, (name, chip)
            assert measures["matrix"], (name, chip)


@pytest.mark.parametrize("kernel", ["decode", "prefill"])
def test_rows_of_int4_are_loaded_16_bytes_at_a_time_where_they_are_a_multiple(reviewed, kernel):
    """Those of head_dim 80 are 40 bytes: its wide loads are of queries and tails alone."""
    cases = {dim: reviewed[f"{kernel} int4 {dim}: {kernel}_kernel"] for dim in (64, 80, 128, 256)}
    for chip in ("sm_80", "sm_90", "sm_100"):
        wide = {dim: chips[chip]["wide_loads"] for dim, chips in cases.items()}
        assert all(wide[dim] > wide[80] for dim in (64, 128, 256))


def test_the_table_is_of_these_kernels(reviewed, tmp_path, monkeypatch):
    """One of them, since all take minutes."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    case = "write fp8 128"
    found = dict(static.compile_case(case))
    assert len(found) == 1
    expected = {name: chips for name, chips in reviewed.items() if name.startswith(f"{case}:")}
    assert static.list_differences(expected, found) == []


def test_a_difference_names_kernel_chip_and_number():
    before = {"decode: k": {"sm_80": {"registers": 80, "spilled": 0}}}
    now = {"decode: k": {"sm_80": {"registers": 96, "spilled": 0}}}
    assert static.list_differences(before, now) == [
        "decode: k on sm_80, registers: 80 in the table, 96 found"
    ]
    assert len(static.list_differences(before, {})) == 2
