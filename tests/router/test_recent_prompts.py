"""What was routed a moment ago counts as cached there, for a moment."""

import random
from hashlib import blake2b

from router.recent_prompts import LIFE, MOST, RecentPrompts, Sent

A, B = "a", "b"


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def chain(*parts):
    """Keys of a prompt: each names all blocks up to its own."""
    made = (str(parts[: end + 1]).encode() for end in range(len(parts)))
    return [blake2b(each, digest_size=16).digest() for each in made]


def blocks(found):
    return {node: sent.blocks for node, sent in found.items()}


def recent():
    clock = Clock()
    return RecentPrompts(clock), clock


def test_the_shared_blocks_are_found_to_the_block_but_for_chance():
    prompts, _ = recent()
    sent = chain(*range(50))
    prompts.note(A, 1, sent)
    over = 0
    for shared in range(51):
        found = blocks(prompts.match(chain(*range(shared), "x", "y"))).get(A, 0)
        assert shared <= found <= shared + 1
        over += found - shared
    assert over <= 1
    assert blocks(prompts.match(sent[:20])) == {A: 20}
    assert blocks(prompts.match(chain(*range(60)))) == {A: 50}
    assert prompts.match([]) == {}


def test_each_holder_has_its_own_and_an_older_life_is_another():
    prompts, _ = recent()
    prompts.note(A, 1, chain(*range(10)))
    prompts.note(B, 1, chain(*range(5)))
    assert blocks(prompts.match(chain(*range(20)))) == {A: 10, B: 5}
    prompts.note(A, 2, chain(*range(3)))
    assert prompts.match(chain(*range(3))) == {A: Sent(2, 3), B: Sent(1, 3)}


def test_it_is_forgotten_after_a_short_life():
    prompts, clock = recent()
    prompts.note(A, 1, chain(*range(8)))
    clock.now = LIFE / 2
    prompts.note(A, 1, chain(*range(4), "other"))
    clock.now = LIFE
    assert blocks(prompts.match(chain(*range(8)))) == {A: 4}
    clock.now = 1.5 * LIFE
    assert prompts.match(chain(*range(8))) == {}
    clock.now = 3 * LIFE
    prompts.note(B, 1, chain("new"))
    assert len(prompts) == 1


def test_what_a_node_refused_is_withdrawn_and_what_it_took_is_not():
    prompts, clock = recent()
    prompts.note(A, 1, chain(*range(4)))
    prompts.note(A, 1, chain(*range(4), "x", "y", "z", "w"))
    prompts.note(B, 1, chain(*range(8)))
    prompts.withdraw(A, chain(*range(4), "x", "y", "z", "w"))
    assert blocks(prompts.match(chain(*range(8)))) == {B: 8}
    prompts.note(A, 1, chain(*range(3)))
    prompts.withdraw(A, chain(*range(3), "never sent"))
    assert blocks(prompts.match(chain(*range(8)))) == {A: 3, B: 8}
    clock.now = LIFE
    assert prompts.match(chain(*range(8))) == {}


def test_its_number_is_bounded():
    prompts, _ = recent()
    for number in range(MOST + 50):
        prompts.note(A, 1, chain(number, 1, 2))
        assert len(prompts) <= MOST
    assert len(prompts) >= MOST / 2
    assert prompts.match(chain(3, 1)) == {}
    assert blocks(prompts.match(chain(MOST, 1, 2))) == {A: 3}


def test_it_never_claims_what_was_not_sent_and_finds_at_least_a_quarter():
    draw, (prompts, clock) = random.Random(4), recent()
    sent, over = [], 0
    for _ in range(400):
        keys = chain(*(draw.randrange(2) for _ in range(draw.randrange(1, 12))))
        known = {h: [s for s, holder, at in sent if holder == h and at + LIFE > clock.now]
                 for h in (A, B)}  # fmt: skip
        found = blocks(prompts.match(keys))
        for holder in (A, B):
            most = max((_shared(keys, other) for other in known[holder]), default=0)
            over += found.get(holder, 0) > most
            assert most / 4 <= found.get(holder, 0) <= most + 1
        holder = draw.choice((A, B))
        prompts.note(holder, 1, keys)
        sent.append((keys, holder, clock.now))
        clock.now += draw.random() * 0.2
    assert over < 10


def _shared(keys, others):
    return sum(a == b for a, b in zip(keys, others, strict=False))
