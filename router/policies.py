"""The policies by their names."""

import random

from router.plain_policies import LeastLoaded, RandomChoice, RoundRobin, SessionAffinity
from router.policy import Policy
from router.prefix_aware import PrefixAware

POLICIES = ("prefix-aware", "least-loaded", "round-robin", "random", "session")


def make_policy(name: str, block_size: int, rng: random.Random) -> Policy:
    """The policy called `name`; ValueError for another name. `block_size` is in tokens."""
    match name:
        case "prefix-aware":
            return PrefixAware(block_size, rng)
        case "least-loaded":
            return LeastLoaded(rng)
        case "round-robin":
            return RoundRobin()
        case "random":
            return RandomChoice(rng)
        case "session":
            return SessionAffinity(PrefixAware(block_size, rng))
    raise ValueError(f"policy: unknown name {name!r}")
