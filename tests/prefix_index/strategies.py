"""Hypothesis strategies over a few keys, so that events meet."""

from hypothesis import strategies as st

from kvmesh.v1.cache_node_pb2 import TIER_CPU, TIER_GPU
from prefix_index.events import Cleared, Removed, Stored

KEYS = [bytes([number]) * 16 for number in range(6)]

tiers = st.sampled_from([TIER_GPU, TIER_CPU])
stored = st.builds(Stored, st.sampled_from(KEYS), tiers)
removed = st.builds(Removed, st.sampled_from(KEYS), tiers)
events = st.one_of(stored, stored, removed, st.just(Cleared()))
steps = st.lists(st.lists(events, max_size=8), max_size=8)
