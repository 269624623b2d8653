"""Any order of events keeps the invariants and the answers."""

from hypothesis import settings

from tests.cache_node.node_machine import NodeMachine

TestNode = NodeMachine.TestCase
TestNode.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
