"""Policies that do not look at the prompt: baselines, and what some fleets want."""

import random
from collections.abc import Sequence
from hashlib import blake2b

from router.policy import Candidate, Choice, Cost, Policy


class LeastLoaded:
    """The node with the fewest requests."""

    name = "least-loaded"
    needs_all = False

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(
        self,
        prompt_tokens: int,  # noqa: ARG002
        candidates: Sequence[Candidate],
        session: str = "",  # noqa: ARG002
    ) -> Choice:
        least = min(each.requests for each in candidates)
        chosen = self._rng.choice([each for each in candidates if each.requests == least])
        reason = f"least loaded of {len(candidates)}: {least} requests"
        return Choice(
            chosen,
            "load",
            reason,
            lambda: {each.node: Cost(each.requests) for each in candidates},
        )


class RoundRobin:
    """One after the other."""

    name = "round-robin"
    needs_all = True

    def __init__(self) -> None:
        self._turn = 0

    def choose(
        self,
        prompt_tokens: int,  # noqa: ARG002
        candidates: Sequence[Candidate],
        session: str = "",  # noqa: ARG002
    ) -> Choice:
        chosen = candidates[self._turn % len(candidates)]
        self._turn += 1
        return Choice(chosen, "round-robin", "round robin")


class RandomChoice:
    """Any."""

    name = "random"
    needs_all = False

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(
        self,
        prompt_tokens: int,  # noqa: ARG002
        candidates: Sequence[Candidate],
        session: str = "",  # noqa: ARG002
    ) -> Choice:
        return Choice(self._rng.choice(candidates), "random", "random choice")


class SessionAffinity:
    """All requests of a session on one node, the same for every router (rendezvous hashing, Thaler
    and Ravishankar 1998): when a node goes, its sessions alone move. Others go as `other` says.
    """

    name = "session"
    needs_all = True

    def __init__(self, other: Policy) -> None:
        self._other = other

    def choose(
        self, prompt_tokens: int, candidates: Sequence[Candidate], session: str = ""
    ) -> Choice:
        if not session:
            return self._other.choose(prompt_tokens, candidates)
        chosen = max(candidates, key=lambda each: _weight(session, each.node))
        return Choice(chosen, "session", "the node of this session")


def _weight(session: str, node: str) -> bytes:
    """blake2b of node and session, apart from each other by the node's length."""
    name = node.encode()
    framed = len(name).to_bytes(4, "little") + name + session.encode()
    return blake2b(framed, digest_size=8, person=b"kvmesh-session").digest()
