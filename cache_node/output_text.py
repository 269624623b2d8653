"""The text of one growing output: whole characters, cut at a stop string that never leaks."""

from kvmesh.detokenizer import IncrementalDetokenizer, StopStrings
from kvmesh.tokenizer import Tokenizer


class OutputText:
    """Fed with the tokens of one sample in order. Owned by the engine's thread."""

    def __init__(
        self, tokenizer: Tokenizer, stop: tuple[str, ...], skip_special_tokens: bool
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=skip_special_tokens
        )
        self._stops = StopStrings(stop)

    def push(self, token: int) -> tuple[str, str | None]:
        """The text that became final with `token`, and the stop string that it completed, if it
        did.
        """
        return self._stops.push(self._detokenizer.push(token))

    def flush(self) -> str:
        """What was held back as the beginning of a stop string or of a character, once no token
        follows.
        """
        text, matched = self._stops.push(self._detokenizer.flush())
        return text if matched is not None else text + self._stops.flush()
