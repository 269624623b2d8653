"""The text of one growing output: whole characters, cut at a stop string that never leaks."""

from collections.abc import Iterable

from kvmesh.detokenizer import IncrementalDetokenizer, StopStrings
from kvmesh.tokenizer import Tokenizer


class OutputText:
    """Fed with the tokens of one sample in order. Owned by the engine's thread.

    No stop string is looked for in the text of the first `min_tokens` tokens: one that counts lies
    completely behind it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: tuple[str, ...],
        skip_special_tokens: bool,
        min_tokens: int = 0,
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=skip_special_tokens
        )
        self._stops = StopStrings(stop)
        self._unchecked = min_tokens  # tokens to come whose text is not searched
        self._owed = ""  # text of replayed tokens that the client does not have

    def replay(self, tokens: Iterable[int], sent: int) -> None:
        """Takes in tokens chosen on another node, of whose text the client has `sent` bytes of
        UTF-8. The rest comes with what follows. Raises ValueError unless they have so much text.
        """
        text = "".join(self.push(token)[0] for token in tokens).encode()
        if sent > len(text):
            raise ValueError(f"must be at most {len(text)}, the text of the tokens, is {sent}")
        self._owed = text[sent:].decode()

    def push(self, token: int) -> tuple[str, str | None]:
        """The text that became final with `token`, and the stop string that it completed, if it
        did.
        """
        text, stop = self._next(token)
        owed, self._owed = self._owed, ""
        return owed + text, stop

    def flush(self) -> str:
        """What was held back as the beginning of a stop string or of a character, once no token
        follows.
        """
        owed, self._owed = self._owed, ""
        return owed + self._rest()

    def _next(self, token: int) -> tuple[str, str | None]:
        text = self._detokenizer.push(token)
        if self._unchecked > 0:
            self._unchecked -= 1
            return text, None
        return self._stops.push(text)

    def _rest(self) -> str:
        if self._unchecked > 0:
            return self._detokenizer.flush()
        text, matched = self._stops.push(self._detokenizer.flush())
        return text if matched is not None else text + self._stops.flush()
