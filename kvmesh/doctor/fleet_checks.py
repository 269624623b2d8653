"""What can be wrong with a router, or between it and its nodes."""

from collections.abc import Callable, Iterable

from kvmesh.doctor.finding import Finding, Level
from kvmesh.doctor.node_checks import BUSY, TUNE
from kvmesh.doctor.readings import Readings
from kvmesh.doctor.snapshot import Node, Snapshot

OLD = 10.0  # seconds that a request may wait
SLOW_STAGE = 0.010  # seconds that a router may take for a request before it is sent on
WORN_OUT = 0.80  # of one core: a router is one process
LAG = 10.0  # seconds
MISLED = 0.5  # of the tokens that the index promised, found
ENOUGH_TOKENS = 10_000
STAGES = ("tokenize", "block_keys", "route")

Check = Callable[[Readings, Snapshot], Finding]


def nodes(router: Readings, _fleet: Snapshot) -> Finding:
    health = router.by("kvmesh_router_nodes", "health")
    open_breakers = sum(
        value
        for labels, value in router.samples.get("kvmesh_router_breaker", ())
        if labels.get("state") == "open"
    )
    lost = int(health.get("down", 0) + health.get("refused", 0))
    told = ", ".join(f"{int(count)} {word}" for word, count in health.items() if count)
    evidence = f"kvmesh_router_nodes {told or 0}; {int(open_breakers)} breakers open"
    if lost or open_breakers or not health.get("up"):
        count = max(lost, int(open_breakers))
        text = f"nodes that get no requests: {count}" if count else "no node is up"
        change = "kvmesh nodes says why"
        return _finding(router, "nodes", Level.SERIOUS, text, evidence, change)
    return _finding(router, "nodes", Level.FINE, f"{told}", evidence)


def metrics(router: Readings, fleet: Snapshot) -> Finding:
    infos = [labels for labels, _ in router.samples.get("kvmesh_router_node_info", ())]
    silent = [labels["node"] for labels in infos if not labels.get("metrics")]
    names = {node.name for node in fleet.nodes}
    unknown = [name for name in silent if name not in names]
    evidence = f"kvmesh_router_node_info: {len(infos)} nodes, {len(silent)} without an address"
    if unknown:
        text = f"{', '.join(unknown)} cannot be looked at: it serves no metrics"
        return _finding(router, "metrics", Level.ADVICE, text, evidence, "--metrics-port 9400")
    return _finding(router, "metrics", Level.FINE, "every node tells its metrics", evidence)


def queue(router: Readings, _fleet: Snapshot) -> Finding:
    reasons = router.by("kvmesh_router_queue_depth", "reason")
    waiting = int(sum(reasons.values()))
    ages = router.by("kvmesh_router_queue_oldest_seconds", "priority")
    oldest = max(ages.values(), default=0.0)
    refused = router.by("kvmesh_router_refused_total", "reason")
    full = int(refused.get("queue_full", 0) + refused.get("too_late", 0))
    told = ", ".join(f"{int(count)} for {word}" for word, count in reasons.items() if count)
    evidence = f"kvmesh_router_queue_depth {told or 0}; oldest {oldest:.1f} s; {full} refused"
    if oldest <= OLD and not full:
        return _finding(router, "queue", Level.FINE, f"{waiting} requests wait", evidence)
    level = Level.SERIOUS if full else Level.ADVICE
    text = f"requests wait up to {oldest:.0f} s; {full} were refused {router.period}"
    seats = reasons.get("seats", 0) > waiting / 2
    change = "--max-num-seqs 512 on nodes" if seats else "more nodes; see preemptions and kv-memory"
    return _finding(router, "queue", level, text, evidence, change)


def watermark(router: Readings, fleet: Snapshot) -> Finding:
    high = router.total("kvmesh_router_watermark", mark="high")
    reasons = router.by("kvmesh_router_queue_depth", "reason")
    held_back = int(reasons.get("watermark", 0))
    closed = {
        labels["node"]
        for labels, value in router.samples.get("kvmesh_router_above_watermark", ())
        if value
    }
    evidence = f"--high-watermark {high:g}; {held_back} wait for it, {len(closed)} nodes above it"
    roomy = [node for node in fleet.nodes if node.name in closed and node.usage < BUSY]
    if held_back and roomy:
        text = f"requests wait although {_names(roomy)} use under {BUSY:.0%}: growth is overrated"
        change = (
            "--scheduling-policy adaptive" if _strict(roomy) else "lower max_tokens of requests"
        )
        if high < 0.98 and not _strict(roomy):
            change = f"--high-watermark {min(1.0, high + 0.04):.2f}"
        return _finding(router, "watermark", Level.ADVICE, text, evidence, change)
    losing = [node for node in fleet.nodes if node.preemptions > TUNE]
    if losing and high > 0.8:
        text = f"{_names(losing)}: the mark lets in more requests than can keep their memory"
        change = f"--high-watermark {high - 0.1:.2f} --low-watermark {high - 0.15:.2f}"
        return _finding(router, "watermark", Level.ADVICE, text, evidence, change)
    return _finding(router, "watermark", Level.FINE, "neither too low nor too high", evidence)


def router_time(router: Readings, _fleet: Snapshot) -> Finding:
    times = {stage: router.mean(f"kvmesh_router_{stage}_seconds") or 0.0 for stage in STAGES}
    whole = sum(times.values())
    busy = router.total("process_cpu_seconds_total") / router.seconds if router.seconds else 0.0
    told = ", ".join(f"{stage} {seconds * 1e3:.2f} ms" for stage, seconds in times.items())
    evidence = f"{told}; {busy:.0%} of a core {router.period}"
    if busy > WORN_OUT:
        text = "the router's process is at the end of its core"
        change = "another kvmesh router beside it, both with --redis"
        return _finding(router, "router", Level.ADVICE, text, evidence, change)
    if whole > SLOW_STAGE:
        slowest = max(times, key=lambda stage: times[stage])
        text = f"a request takes {whole * 1e3:.0f} ms in the router, most of it {slowest}"
        change = "--tokenizer-threads 4" if slowest == "tokenize" else "a core for the router alone"
        return _finding(router, "router", Level.ADVICE, text, evidence, change)
    text = f"{whole * 1e3:.1f} ms a request: it is not in the way"
    return _finding(router, "router", Level.FINE, text, evidence)


def index(router: Readings, _fleet: Snapshot) -> Finding:
    modes = [
        labels for labels, value in router.samples.get("kvmesh_router_index_mode", ()) if value
    ]
    lags = router.by("kvmesh_router_index_lag_seconds", "node")  # of nodes that are there
    off = [
        labels["node"]
        for labels in modes
        if labels.get("mode") != "exact" and labels["node"] in lags
    ]
    lag = max(lags.values(), default=0.0)
    promised = router.total("kvmesh_router_predicted_cached_tokens_total")
    found = router.total("kvmesh_router_cached_tokens_total")
    evidence = f"lag {lag:.1f} s; {int(found)} tokens cached, {int(promised)} predicted"
    if off or lag > LAG:
        text = f"the index of {', '.join(off) or 'a node'} is not up to date"
        change = "look whether Redis answers (--redis), and at the router's log"
        return _finding(router, "index", Level.ADVICE, text, evidence, change)
    if promised >= ENOUGH_TOKENS and found < MISLED * promised:
        text = "nodes have evicted much of what the index promised when a request arrives"
        change = "--kv-cache-bytes, or --swap-space 4: what is promised should still be there"
        return _finding(router, "index", Level.ADVICE, text, evidence, change)
    return _finding(router, "index", Level.FINE, "up to date", evidence)


def policy(router: Readings, fleet: Snapshot) -> Finding:
    routed = router.by("kvmesh_router_routed_total", "policy")
    told = ", ".join(f"{int(count)} {name}" for name, count in routed.items())
    evidence = f"kvmesh_router_routed_total {told or 0}; {len(fleet.nodes)} nodes"
    blind = [name for name in routed if name not in ("prefix-aware", "session")]
    caching = any(node.fact("prefix_caching") == "on" for node in fleet.nodes)
    if blind and caching and len(fleet.nodes) > 1:
        text = f"{blind[0]} sends prompts past the nodes that hold their prefix"
        change = "--policy prefix-aware"
        return _finding(router, "policy", Level.ADVICE, text, evidence, change)
    text = "requests go where their prefix is" if routed else "no request has been routed"
    return _finding(router, "policy", Level.FINE, text, evidence)


CHECKS: tuple[Check, ...] = (*(nodes, metrics, queue, watermark, router_time, index, policy),)


def _strict(found: Iterable[Node]) -> bool:
    return any(node.fact("scheduling_policy") == "strict" for node in found)


def _names(found: Iterable[Node]) -> str:
    return ", ".join(node.name for node in found)


def _finding(
    router: Readings, check: str, level: Level, finding: str, evidence: str, change: str = ""
) -> Finding:
    where = f"router {router.address}"
    return Finding(
        check=check, where=where, level=level, finding=finding, evidence=evidence, change=change
    )
