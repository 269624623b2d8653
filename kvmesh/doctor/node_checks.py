"""What can be wrong with one cache node. Each check is a function of its readings; None where they
say nothing.
"""

from collections.abc import Callable
from math import inf

from kvmesh.doctor.finding import Finding, Level
from kvmesh.doctor.snapshot import BYTES, Node

GIB = 1 << 30
TUNE, SERIOUS = 10, 100  # preemptions above which something should, and must, be done
FULL = 0.90  # share of blocks in use
BUSY = 0.70
IDLE_MEMORY = 0.50  # share of what a node may use, above which the KV pool is no small one
CROWDED = 0.95  # share of it that model and KV should not go over on a host
HEAVY = 0.60  # share of it that weights take, above which little is left for KV
HITTING = 0.10  # share of prompt tokens
ENOUGH_TOKENS = 10_000  # of prompts, before hits say something
ENOUGH_SAMPLES = 20  # that ended, before their lengths say something
MORE = 1.1  # times the KV pool that there should be room for, or it is not worth a restart
FAR_ABOVE = 4  # times as long as what requests use

Check = Callable[[Node], Finding | None]


def is_short(node: Node) -> bool:
    """Whether KV memory is what requests lack."""
    crowded = node.usage > FULL or (node.usage > BUSY and node.waiting > 0)
    return crowded or node.preemptions > TUNE


def preemptions(node: Node) -> Finding:
    count, period = node.preemptions, node.read.period
    kinds = node.read.by("kvmesh_num_preemptions_total", "kind")
    told = ", ".join(f"{int(value)} by {kind}" for kind, value in sorted(kinds.items()))
    evidence = f"kvmesh_num_preemptions_total {told or 0}; usage now {node.usage:.0%}"
    if count <= TUNE:
        return _finding(
            node, "preemptions", Level.FINE, f"{count} for want of memory {period}", evidence
        )
    return _finding(
        node,
        "preemptions",
        Level.SERIOUS if count > SERIOUS else Level.ADVICE,
        f"{count} requests lost their KV memory {period}",
        evidence,
        f"{more_memory(node)}; or --scheduling-policy strict, which lets fewer in",
    )


def kv_memory(node: Node) -> Finding | None:
    if not node.memory_limit:
        return None
    used, limit = node.pool_bytes + node.weight_bytes + node.beside, node.memory_limit
    share = used / limit
    evidence = (
        f"KV pool {_size(node.pool_bytes)}, weights {_size(node.weight_bytes)}, other nodes "
        f"{_size(node.beside)}: {share:.0%} of {_size(limit)}; usage now {node.usage:.0%}"
    )
    if share > CROWDED and not node.on_gpu:
        fits = _round(CROWDED * limit - (used - node.pool_bytes))
        change = f"--kv-cache-bytes {fits}, or fewer nodes on the host"
        text = "KV pools and weights do not fit the memory"
        return _finding(node, "kv-memory", Level.SERIOUS, text, evidence, change)
    if is_short(node) and share < IDLE_MEMORY:
        text = "requests lack KV memory, and most of what there is lies idle"
        return _finding(node, "kv-memory", Level.ADVICE, text, evidence, more_memory(node))
    text = f"{_size(node.pool_bytes)} of KV memory, {node.usage:.0%} in use"
    return _finding(node, "kv-memory", Level.FINE, text, evidence)


def prefix_cache(node: Node) -> Finding:
    hits, queries = (
        node.read.total(f"kvmesh_{name}_total")
        for name in ("cached_tokens", "prefix_cache_queries")
    )
    rate = hits / queries if queries else 0.0
    tiers = node.read.by("kvmesh_cached_tokens_total", "tier")
    told = ", ".join(f"{int(value)} in {tier}" for tier, value in sorted(tiers.items()))
    evidence = f"kvmesh_cached_tokens_total {told or 0} of {int(queries)} prompt tokens"
    if node.fact("prefix_caching") == "off":
        text = "prefix caching is off: every prompt is computed whole"
        change = "--enable-prefix-caching"
        return _finding(node, "prefix-cache", Level.ADVICE, text, evidence, change)
    free = node.read.total("kvmesh_kv_blocks", state="free")
    if queries >= ENOUGH_TOKENS and rate < HITTING and free == 0:
        text = f"only {rate:.0%} of prompt tokens are cached, and the pool has no free block left"
        change = f"{more_memory(node)}; or --swap-space 4, a second tier"
        return _finding(node, "prefix-cache", Level.ADVICE, text, evidence, change)
    text = f"on; {rate:.0%} of prompt tokens {node.read.period} were cached"
    return _finding(node, "prefix-cache", Level.FINE, text, evidence)


def kv_dtype(node: Node) -> Finding:
    dtype = node.fact("kv_cache_dtype")
    evidence = f"kv_cache_dtype {dtype}; usage now {node.usage:.0%}, {node.preemptions} preemptions"
    if is_short(node) and BYTES.get(dtype, 1) > 1:
        text = f"fp8 or int8 would hold {BYTES[dtype]} times the tokens in the same memory"
        change = "--kv-cache-dtype fp8"
        return _finding(node, "kv-dtype", Level.ADVICE, text, evidence, change)
    text = f"{dtype}: nothing is won by another" if not is_short(node) else f"{dtype} already"
    return _finding(node, "kv-dtype", Level.FINE, text, evidence)


def max_model_len(node: Node) -> Finding | None:
    longest = node.read.below("kvmesh_request_tokens", 0.99)
    ended = node.read.total("kvmesh_request_tokens_count")
    limit = int(node.fact("max_model_len") or 0)
    if longest is None or longest == inf or ended < ENOUGH_SAMPLES or not limit:
        return None
    evidence = f"kvmesh_request_tokens: 99 % of {int(ended)} are at most {int(longest)} tokens"
    if longest * FAR_ABOVE <= limit and (is_short(node) or node.committed > FULL):
        text = f"requests use a fraction of max_model_len, {limit}, and memory is kept for it"
        change = f"--max-model-len {int(2 * longest)}"
        return _finding(node, "max-model-len", Level.ADVICE, text, evidence, change)
    text = f"max_model_len is {limit}, which keeps no memory from others now"
    return _finding(node, "max-model-len", Level.FINE, text, evidence)


def weights(node: Node) -> Finding | None:
    if not node.memory_limit:
        return None
    share = node.weight_bytes / node.memory_limit
    evidence = f"weights {_size(node.weight_bytes)} of {_size(node.memory_limit)}"
    if share <= HEAVY:
        return _finding(node, "weights", Level.FINE, f"take {share:.0%} of the memory", evidence)
    text = f"weights take {share:.0%} of the memory: little is left for KV"
    halves = node.fact("dtype") == "float32"
    change = "--dtype bfloat16" if halves else "a smaller model, or a node with more memory"
    return _finding(node, "weights", Level.ADVICE, text, evidence, change)


def kernel(node: Node) -> Finding | None:
    name = node.fact("attention")
    if not name:
        return None
    evidence = f"attention {name} on {node.fact('device')}"
    if name != "torch":
        return _finding(node, "kernel", Level.FINE, f"attention runs on {name} kernels", evidence)
    text = "attention runs in plain torch, at a fraction of the speed"
    change = "install g++ (or set CXX) on the node and start it again; its log says why"
    return _finding(node, "kernel", Level.ADVICE, text, evidence, change)


def progress(node: Node) -> Finding:
    stuck = int(node.read.total("kvmesh_steps_without_progress_total"))
    evidence = f"kvmesh_steps_without_progress_total {stuck}"
    if not stuck:
        return _finding(node, "progress", Level.FINE, "every step computed something", evidence)
    text = f"{stuck} steps computed nothing although requests waited: a fault of kvmesh"
    change = "drain and restart the node, and tell us with its log"
    return _finding(node, "progress", Level.SERIOUS, text, evidence, change)


CHECKS: tuple[Check, ...] = (
    *(preemptions, kv_memory, prefix_cache, kv_dtype, max_model_len, weights, kernel, progress),
)


def more_memory(node: Node) -> str:
    """The flag that gives the KV pool up to twice as much of what there is, as its size was given;
    where nothing is left, what makes do with less.
    """
    flag, growth = node.fact("pool_sized_by"), _growth(node)
    if growth < MORE:
        halves = BYTES.get(node.fact("kv_cache_dtype"), 1) > 1
        return "--kv-cache-dtype fp8" if halves else "a node more"
    if flag == "gpu_memory_utilization":
        return f"--gpu-memory-utilization {CROWDED:g}"
    if flag == "num_blocks":
        return f"--num-blocks {int(growth * node.blocks) + 1}"
    if flag == "kv_cache_ram_share":
        return f"--kv-cache-ram-share {growth * node.pool_bytes / node.memory_limit:.2f}"
    return f"--kv-cache-bytes {_round(growth * node.pool_bytes)}"


def _growth(node: Node) -> float:
    """How many times as large the KV pool can be, at most twice."""
    if not node.memory_limit or not node.pool_bytes:
        return 1.0
    memory = node.gpu_bytes or node.memory_limit
    left = CROWDED * memory - node.weight_bytes - node.beside
    return min(2.0, left / node.pool_bytes)


def _finding(
    node: Node, check: str, level: Level, finding: str, evidence: str, change: str = ""
) -> Finding:
    return Finding(
        check=check, where=node.name, level=level, finding=finding, evidence=evidence, change=change
    )


def _round(size: float) -> int:
    """Down to whole MiB."""
    return max(1, int(size) >> 20) << 20


def _size(count: float) -> str:
    return f"{count / GIB:.2f} GiB"
