"""Measures the prefix index in one process: `python -m bench.index`. Best of several runs."""

import os
import timeit
import tracemalloc
from collections.abc import Callable

from kvmesh.v1.cache_node_pb2 import TIER_GPU
from prefix_index.batch import Batch
from prefix_index.events import pack_held
from prefix_index.keys import KEY_BYTES, TOKEN_BYTES, block_keys
from prefix_index.mirror import Mirror

NODES, BLOCKS, BLOCK_SIZE = 8, 256, 16
ENTRIES = 200_000  # keys for the memory and feed figures


def main() -> None:
    prompt = os.urandom(BLOCKS * BLOCK_SIZE * TOKEN_BYTES)
    root = bytes(KEY_BYTES)
    keys = block_keys(root, prompt, BLOCK_SIZE)
    same = _mirror([keys] * NODES)
    uneven = _mirror([keys[: BLOCKS - 8 * node] for node in range(NODES)])
    cold = block_keys(b"\x01" * KEY_BYTES, prompt, BLOCK_SIZE)

    _report("block keys, 256 blocks", _best(lambda: block_keys(root, prompt, BLOCK_SIZE)))
    _report("match, 8 nodes hold all 256", _best(lambda: same.match(keys)))
    _report("match, 8 nodes, all runs differ", _best(lambda: uneven.match(keys)))
    _report("match, nobody holds it", _best(lambda: same.match(cold)))
    _feed_and_memory()


def _feed_and_memory() -> None:
    keys = [os.urandom(KEY_BYTES) for _ in range(ENTRIES)]
    snapshot = _snapshot(keys)
    seconds = min(timeit.repeat(lambda: _fed(snapshot), number=1, repeat=3))
    _report("apply, a key", seconds / ENTRIES)
    for nodes in (1, NODES):
        tracemalloc.start()
        kept = _fed(*[_snapshot(keys[node::nodes]) for node in range(nodes)])
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        print(f"{f'mirror, {nodes} nodes':34} {size / ENTRIES:8.1f} bytes a key")
        del kept


def _mirror(held: list[list[bytes]]) -> Mirror:
    return _fed(*[_snapshot(keys) for keys in held])


def _fed(*snapshots: Batch) -> Mirror:
    mirror = Mirror()
    for number, batch in enumerate(snapshots):
        mirror.set_epoch(f"node-{number}", 1)
        mirror.apply(f"node-{number}", 1, batch)
    return mirror


def _snapshot(keys: list[bytes]) -> Batch:
    return Batch(0, 1, True, pack_held({TIER_GPU: keys}))


def _best(call: Callable[[], object]) -> float:
    return min(timeit.repeat(call, number=500, repeat=7)) / 500


def _report(name: str, seconds: float) -> None:
    print(f"{name:34} {seconds * 1e6:8.2f} µs")


if __name__ == "__main__":
    main()
