"""What tells two models apart, cheaply: nodes with the same files get the same fingerprint."""

import json
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from cache_node.model.weights import checkpoint_files

SAMPLE_BYTES = 4096
VOLATILE_FIELDS = ("transformers_version", "_name_or_path")


def model_fingerprint(directory: Path) -> bytes:
    """blake2b-128 over config.json, tokenizer.json, and of each safetensors file the header and the
    first, middle and last 4 KiB of every tensor.

    Every tensor is touched, so that a model of which only some layers were tuned differs; the whole
    data is not read, so that a change of a few bytes inside a tensor is not seen.
    """
    digest = blake2b(digest_size=16, person=b"kvmesh-model")
    for part in _parts(directory):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def _parts(directory: Path) -> Iterator[bytes]:
    yield _canonical_config(directory / "config.json")
    yield (directory / "tokenizer.json").read_bytes()
    for path in checkpoint_files(directory):
        yield path.name.encode()
        yield from _samples(path)


def _canonical_config(path: Path) -> bytes:
    config = json.loads(path.read_bytes())
    kept = {name: value for name, value in config.items() if name not in VOLATILE_FIELDS}
    return json.dumps(kept, sort_keys=True).encode()


def _samples(path: Path) -> Iterator[bytes]:
    """The header of a safetensors file (length, then JSON), then pieces of each tensor in the order
    of its name.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = file.read(size)
        yield header
        tensors = json.loads(header)
        tensors.pop("__metadata__", None)
        for name in sorted(tensors):
            begin, end = tensors[name]["data_offsets"]
            last = max(begin, end - SAMPLE_BYTES)
            for offset in (begin, (begin + last) // 2, last):
                file.seek(8 + size + offset)
                yield file.read(min(SAMPLE_BYTES, end - offset))
