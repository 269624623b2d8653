"""How an answer can go on elsewhere, from the raw frames that a client has got."""

import pytest

from kvmesh.packing import pack_tokens
from kvmesh.v1 import generate_pb2 as pb
from router import relayed
from router.relayed import Relayed

LENGTH = pb.FINISH_REASON_LENGTH


def frame(*deltas, **fields):
    return pb.GenerateResponse(
        deltas=[
            pb.SampleDelta(index=index, token_ids=pack_tokens(tokens), text=text, finish_reason=end)
            for index, tokens, text, end in deltas
        ],
        **fields,
    ).SerializeToString()


def test_each_sample_goes_on_from_its_own_tokens_and_bytes_of_text():
    answer = Relayed(3)
    answer.add(frame((0, [5], "\u00e4", 0), (1, [6], "b", 0)))
    answer.add(frame((1, [7, 8], "cd", LENGTH)))
    answer.add(frame((0, [9], "", 0)))
    entries = answer.resume()
    assert [(e.index, e.token_ids, e.finished, e.text_bytes_sent) for e in entries] == [
        (0, pack_tokens([5, 9]), False, 2),
        (1, pack_tokens([6, 7, 8]), True, 3),
        (2, b"", False, 0),
    ]
    assert not answer.complete


def test_an_answer_that_has_become_too_long_cannot_go_on_but_can_be_complete(monkeypatch):
    monkeypatch.setattr(relayed, "MOST_BYTES", 100)
    answer = Relayed(1)
    for _ in range(20):
        answer.add(frame((0, [5], "x", 0)))
    assert answer.resume() is None
    answer.add(frame((0, [6], "y", LENGTH), summary=pb.Summary(node="node-0")))
    assert answer.complete


@pytest.mark.parametrize("frames", [0, 1])
def test_a_frame_is_progress_until_that_is_taken_note_of(frames):
    answer = Relayed(1)
    for _ in range(frames):
        answer.add(frame((0, [5], "x", 0)))
    assert answer.progressed is bool(frames)
