"""A lease is good for what it was signed for, and for nothing else."""

import pytest

from kvmesh.fleet_key import FleetKey
from kvmesh.lease import ExpiredLeaseError, LeaseKey, WrongLeaseError
from kvmesh.packing import pack_tokens
from kvmesh.v1 import cache_node_pb2 as pb
from kvmesh.v1 import generate_pb2

KEY = LeaseKey(FleetKey(b"0123456789abcdef" * 2))


def request(**changes):
    sampling = generate_pb2.SamplingParams(
        max_tokens=9, seed=3, temperature=0.5, logit_bias={7: 1.0, 3: -1.0, 200: 2.0}
    )
    made = pb.NodeGenerateRequest(
        request_id="r", attempt=1, router_id="a", dispatch_sequence=4, epoch=8,
        token_ids=pack_tokens([1, 2, 3]), sampling=sampling,
    )  # fmt: skip
    made.MergeFrom(pb.NodeGenerateRequest(**changes))
    return made


def test_the_node_learns_the_salt_and_the_expiry():
    lease = KEY.sign(request(), "node-0", b"salt of a tenant", 1000.25)
    read = KEY.check(lease, request(), "node-0", 1000.25)
    assert (read.salt, read.expires) == (b"salt of a tenant", 1000.25)
    assert KEY.check(KEY.sign(request(), "node-0", b"", 1.0), request(), "node-0", 0.0).salt == b""


def test_the_same_request_in_another_form_is_the_same():
    """A client of another language may write the entries of a map in another order."""
    lease = KEY.sign(request(), "node-0", b"", 1000.0)
    other = request()
    biases = list(other.sampling.logit_bias.items())
    other.sampling.ClearField("logit_bias")
    for token, bias in reversed(biases):
        other.sampling.logit_bias[token] = bias
    sent = pb.NodeGenerateRequest.FromString(other.SerializeToString())
    KEY.check(lease, sent, "node-0", 0.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"request_id": "s"}, {"attempt": 2}, {"router_id": "b"}, {"dispatch_sequence": 5},
        {"epoch": 9}, {"token_ids": pack_tokens([1, 2, 4])}, {"priority": 100}, {"salt": b"x"},
        {"cache": generate_pb2.CACHE_MODE_OFF}, {"adapter": "x"}, {"resume": [pb.Resume(index=0)]},
        {"sampling": generate_pb2.SamplingParams(max_tokens=10)},
        {"sampling": generate_pb2.SamplingParams(n=2)},
    ],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
def test_any_change_of_the_request_makes_it_wrong(changes):
    lease = KEY.sign(request(), "node-0", b"salt", 1000.0)
    KEY.check(lease, request(), "node-0", 0.0)
    with pytest.raises(WrongLeaseError):
        KEY.check(lease, request(**changes), "node-0", 0.0)


def test_any_change_of_the_lease_makes_it_wrong():
    lease = KEY.sign(request(), "node-0", b"salt", 1000.0)
    for place in range(len(lease)):
        changed = bytearray(lease)
        changed[place] ^= 1
        with pytest.raises(WrongLeaseError):
            KEY.check(bytes(changed), request(), "node-0", 0.0)
    for cut in (b"", lease[:5], lease[:-1], lease[1:], lease + b"x"):
        with pytest.raises(WrongLeaseError):
            KEY.check(cut, request(), "node-0", 0.0)


def test_it_is_for_one_node_one_fleet_and_a_while():
    lease = KEY.sign(request(), "node-0", b"salt", 1000.0)
    with pytest.raises(WrongLeaseError):
        KEY.check(lease, request(), "node-1", 0.0)
    with pytest.raises(WrongLeaseError):
        LeaseKey(FleetKey(b"1" * 32)).check(lease, request(), "node-0", 0.0)
    with pytest.raises(ExpiredLeaseError):
        KEY.check(lease, request(), "node-0", 1000.01)


def test_a_short_or_missing_secret_is_named(tmp_path):
    path = tmp_path / "key"
    with pytest.raises(ValueError, match=r"^fleet_key_file: cannot read"):
        FleetKey.read(path)
    path.write_text("short\n" + " " * 40)
    with pytest.raises(ValueError, match=r"^fleet_key_file: .* at least 32 characters, has 5"):
        FleetKey.read(path)
    path.write_bytes(b"0123456789abcdef" * 2 + b"\n")
    assert FleetKey.read(path).derive(b"x") == FleetKey(b"0123456789abcdef" * 2).derive(b"x")
    assert FleetKey.read(path).derive(b"x") != FleetKey.read(path).derive(b"y")
