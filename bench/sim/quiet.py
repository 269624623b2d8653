"""Stretches of decoding in which nothing is decided: many steps of the scheduler at once."""

from cache_node.block_pool import BlockPool
from cache_node.commitment import Commitment
from cache_node.sampling import Choice
from cache_node.scheduler import Scheduler
from cache_node.sequence import Sequence


def quiet_steps(scheduler: Scheduler) -> int:
    """How many of the next steps only add a token to each running sequence, if nothing arrives:
    no block is taken or published, nobody starts or ends.
    """
    roster = scheduler.roster
    if not roster.running or roster.loading or len(roster.waiting):
        return 0
    pool = scheduler.memory.pool
    return min(_quiet(sequence, pool) for sequence in roster.running)


def pass_quietly(scheduler: Scheduler, commitment: Commitment, choice: Choice, steps: int) -> None:
    """The state after so many quiet steps, each of which chose `choice` for everybody."""
    if not steps:
        return
    for sequence in scheduler.roster.running:
        sequence.tokens.extend([choice.token] * (steps - 1))
        reason = sequence.append(choice)
        assert reason is None  # then none of the others was a reason either
        sequence.num_computed += steps
    for _ in range(steps):
        commitment.stepped()


def _quiet(sequence: Sequence, pool: BlockPool) -> int:
    if sequence.uncomputed != 1 or not sequence.num_output or sequence.unmade_samples:
        return 0
    size = pool.block_size
    place = sequence.num_computed // size
    if place >= len(sequence.block_table) or pool.references(sequence.block_table[place]) > 1:
        return 0  # takes a block, or copies one
    in_block = (sequence.num_published + 1) * size - 1 - sequence.num_computed
    to_the_end = sequence.max_len - len(sequence.tokens) - 1
    return min(in_block, to_the_end)
