"""Text comes out whole, once, and never past a stop string."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmesh.detokenizer import IncrementalDetokenizer, StopStrings
from kvmesh.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
TEXTS = [
    "Hello, world!",
    "naïve café — 東京 🎭👩‍👩‍👧 ok",
    "  leading and trailing  ",
    "a literal \N{REPLACEMENT CHARACTER} stays",
]


@pytest.fixture(scope="module")
def byte_level(smollm2) -> Tokenizer:
    return Tokenizer.from_directory(smollm2)


@pytest.fixture(scope="module")
def byte_fallback() -> Tokenizer:
    """Spaces as ▁, unknown characters as byte tokens: the kind that Llama 2 has."""
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"Helo,wrd!ai"]
    added = {"id": 1, "content": "</s>", "special": True, "single_word": False}
    content = {
        "version": "1.0",
        "added_tokens": [added | {"lstrip": False, "rstrip": False, "normalized": False}],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "vocab": {piece: index for index, piece in enumerate(pieces)},
            "merges": [],
            "unk_token": "<unk>",
            "byte_fallback": True,
        },
    }
    return Tokenizer({"tokenizer.json": json.dumps(content).encode()})


@pytest.fixture(params=["byte_level", "byte_fallback"])
def tokenizer(request) -> Tokenizer:
    return request.getfixturevalue(request.param)


def pieces(tokenizer, ids, skip_special_tokens=True) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_together_are_the_text(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert "".join(pieces(tokenizer, ids)) == text == tokenizer.decode(ids)


def test_a_split_character_comes_with_its_last_token(tokenizer):
    ids = tokenizer.encode("🎭", add_special_tokens=False)
    assert len([token for token in ids if tokenizer.decode([token])]) > 1
    found = pieces(tokenizer, ids)
    assert found[-2] == "🎭"
    assert not any(REPLACEMENT in piece for piece in found)


def test_an_unfinished_character_is_replaced_at_the_end(tokenizer):
    ids = tokenizer.encode("a🎭", add_special_tokens=False)[:-1]
    found = pieces(tokenizer, ids)
    assert not any(REPLACEMENT in piece for piece in found[:-1])
    assert "".join(found) == tokenizer.decode(ids)
    assert found[-1].startswith(REPLACEMENT)


@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_of_the_tokens_are_those_of_the_text(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    spelled = b"".join(map(tokenizer.token_bytes, ids)).decode()
    assert spelled in (text, f" {text}")  # a vocabulary of pieces begins with a space


def test_special_tokens_are_shown_on_request(byte_level):
    ids = byte_level.encode("hi<|im_end|>", add_special_tokens=False)
    assert "".join(pieces(byte_level, ids)) == "hi"
    assert "".join(pieces(byte_level, ids, skip_special_tokens=False)) == "hi<|im_end|>"


def test_special_tokens_inside_a_character_are_skipped_alike(byte_fallback):
    ids = byte_fallback.encode("H🎭", add_special_tokens=False)
    mixed = [*ids[:3], 1, *ids[3:]]
    assert "".join(pieces(byte_fallback, mixed)) == byte_fallback.decode(mixed) == "H🎭"


def test_an_id_beyond_the_vocabulary_is_no_text(byte_level):
    """A model's vocabulary may be padded beyond the tokenizer's."""
    assert pieces(byte_level, [10**6]) == ["", ""]


@settings(max_examples=150, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=40), skip=st.booleans())
def test_any_tokens_give_the_decoded_text(byte_level, ids, skip):
    assert "".join(pieces(byte_level, ids, skip)) == byte_level.decode(ids, skip)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=30))
def test_any_text_comes_back(byte_level, text):
    ids = byte_level.encode(text, add_special_tokens=False)
    found, expected = pieces(byte_level, ids), byte_level.decode(ids)
    assert "".join(found) == expected  # the text, but for bytes that this vocabulary lacks
    assert REPLACEMENT in expected or not any(REPLACEMENT in piece for piece in found)


@pytest.mark.parametrize("text", ["a", "🎭"])
def test_cost_per_token_does_not_grow(byte_fallback, monkeypatch, text):
    """Neither with plain text nor with bytes that never become a character."""
    token = byte_fallback.encode(text, add_special_tokens=False)[1:][-1]
    sizes, decode = [], byte_fallback.decode
    monkeypatch.setattr(
        byte_fallback, "decode", lambda ids, skip: sizes.append(len(ids)) or decode(ids, skip)
    )
    pieces(byte_fallback, [token] * 500)
    assert max(sizes) <= 20


def cut(stops, parts) -> tuple[str, str | None]:
    machine, text = StopStrings(tuple(stops)), ""
    for part in parts:
        emitted, found = machine.push(part)
        text += emitted
        if found is not None:
            return text, found
    return text + machine.flush(), None


@pytest.mark.parametrize(
    ("stops", "parts", "expected"),
    [
        ([], ["abc"], ("abc", None)),
        (["END"], ["some E", "N", "D tail"], ("some ", "END")),
        (["END"], ["some E", "N", "ERGY"], ("some ENERGY", None)),
        (["END"], ["some EN"], ("some EN", None)),
        (["aab"], ["aaab"], ("a", "aab")),
        (["\n\n"], ["a\n", "b\n", "\n"], ("a\nb", "\n\n")),
        (["abc", "b"], ["abc"], ("a", "b")),
        (["bc", "abc"], ["xabc"], ("x", "abc")),
    ],
)
def test_stop_strings(stops, parts, expected):
    assert cut(stops, parts) == expected


def test_text_that_begins_no_stop_string_is_not_held_back():
    assert StopStrings(("END",)).push("text") == ("text", None)
    assert StopStrings(("END",)).push("text E") == ("text ", None)


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="stop"):
        StopStrings(("a", ""))


@settings(max_examples=300, deadline=None)
@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    parts=st.lists(st.text("abc", max_size=4), max_size=8),
)
def test_how_text_is_divided_changes_nothing(stops, parts):
    text, found = cut(stops, parts)
    assert (text, found) == cut(stops, list("".join(parts)))
    assert not any(stop in text for stop in stops)
    assert "".join(parts).startswith(text + (found or ""))
