"""Text out of tokens as they come: whole characters only, and never a part of a stop string."""

import codecs

from kvmesh.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MAX_HELD_TOKENS = (
    8  # a character has at most 4 bytes, so more tokens than that are not one character
)


class IncrementalDetokenizer:
    """All texts of `push`, then `flush`, are together the decoded text of all tokens.

    A character whose bytes are spread over several tokens comes with the last of them.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._decoder = (
            _ByteDecoder(tokenizer) if tokenizer.byte_level else _WindowDecoder(tokenizer)
        )
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()

    def push(self, token_id: int) -> str:
        """The text that became final with this token, often empty inside a character."""
        return "" if token_id in self._skipped else self._decoder.push(token_id)

    def flush(self) -> str:
        """What was held back: the replacement of a character that stayed incomplete."""
        return self._decoder.flush()


class _ByteDecoder:
    """For byte-level vocabularies, where a token is a run of bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowDecoder:
    """For other vocabularies, where a token's text depends on the one before (spaces, byte
    fallback): decodes a short window twice and takes the difference. The window starts at the token
    before the last text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []  # decoded and given out
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        self._held.append(token_id)
        text = self._new_text()
        if text.endswith(REPLACEMENT) and len(self._held) <= MAX_HELD_TOKENS:
            return ""
        return self._give(text)

    def flush(self) -> str:
        return self._give(self._new_text())

    def _new_text(self) -> str:
        before = self._tokenizer.decode(self._context, False)
        return self._tokenizer.decode(self._context + self._held, False)[len(before) :]

    def _give(self, text: str) -> str:
        self._context, self._held = self._held or self._context, []
        return text


class StopStrings:
    """Cuts a growing text at the first stop string, however the text is divided into pushes.

    Of several stop strings the one that is complete first counts; of those complete at the same
    character the longest.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        """Raises ValueError for an empty stop string."""
        if "" in stop:
            raise ValueError("stop: a stop string must not be empty")
        self._stop = stop
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that is safe to show, and the stop string that was reached, which is not part of
        that text.

        After a stop string was reached, the rest of the text is dropped.
        """
        text = self._held + text
        match = self._first_match(text)
        if match is not None:
            end, found = match
            self._held = ""
            return text[: end - len(found)], found
        keep = self._possible_beginning(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def flush(self) -> str:
        """The text that was held back, once nothing follows."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        """(end, stop string) of the match that ends first."""
        starts = ((text.find(stop), stop) for stop in self._stop)
        matches = [(start + len(stop), -len(stop), stop) for start, stop in starts if start >= 0]
        if not matches:
            return None
        end, _, found = min(matches)
        return end, found

    def _possible_beginning(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = max((len(stop) - 1 for stop in self._stop), default=0)
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0
