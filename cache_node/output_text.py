"""The text of one growing output: whole characters, cut at a stop string that never leaks."""

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

    def push(self, token: int) -> tuple[str, str | None]:
        """The text that became final with `token`, and the stop string that it completed, if it
        did.
        """
        text = self._detokenizer.push(token)
        if self._unchecked > 0:
            self._unchecked -= 1
            return text, None
        return self._stops.push(text)

    def flush(self) -> str:
        """What was held back as the beginning of a stop string or of a character, once no token
        follows.
        """
        if self._unchecked > 0:
            return self._detokenizer.flush()
        text, matched = self._stops.push(self._detokenizer.flush())
        return text if matched is not None else text + self._stops.flush()
