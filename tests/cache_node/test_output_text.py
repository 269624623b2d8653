"""The text of one output: stop strings never leak, and do not count before `min_tokens`."""

import pytest

from cache_node.output_text import OutputText
from kvmesh.tokenizer import Tokenizer

TEXT = "one END two END three 🎭"


@pytest.fixture(scope="module")
def tokenizer(smollm2) -> Tokenizer:
    return Tokenizer.from_directory(smollm2)


def read(output: OutputText, tokens: list[int]) -> tuple[str, str | None, int]:
    """All of the text, the stop string, and how many tokens it took."""
    text = ""
    for count, token in enumerate(tokens, start=1):
        new, stop = output.push(token)
        text += new
        if stop is not None:
            return text, stop, count
    return text + output.flush(), None, len(tokens)


@pytest.mark.parametrize("min_tokens", range(1, 16))
def test_a_stop_string_counts_behind_min_tokens_alone(tokenizer, min_tokens):
    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    head = len(tokenizer.decode(tokens[:min_tokens], False))
    text, stop, count = read(OutputText(tokenizer, ("END",), True, min_tokens), tokens)
    place = TEXT.find("END", head)
    assert text == (TEXT if place < 0 else TEXT[:place])
    assert stop == (None if place < 0 else "END")
    assert count > min_tokens or stop is None


def test_without_min_tokens_the_first_one_counts(tokenizer):
    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    assert read(OutputText(tokenizer, ("END",), True), tokens)[:2] == ("one ", "END")


def test_early_text_is_not_held_back(tokenizer):
    """It might begin a stop string, which would not count."""
    token, following = tokenizer.encode("E E", add_special_tokens=False)
    output = OutputText(tokenizer, (" END", "END"), True, 1)
    assert output.push(token) == ("E", None)
    assert output.push(following) == ("", None)
    assert output.flush() == " E"


def test_a_character_that_stays_incomplete_comes_at_the_end(tokenizer):
    tokens = tokenizer.encode("🎭", add_special_tokens=False)[:1]
    for min_tokens in (0, 1, 2):
        output = OutputText(tokenizer, ("x",), True, min_tokens)
        assert read(output, tokens)[0] == "\N{REPLACEMENT CHARACTER}"
