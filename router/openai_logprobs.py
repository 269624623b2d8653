"""Log-probabilities in OpenAI's two shapes, and a prompt's in vLLM's."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from kvmesh.detokenizer import IncrementalDetokenizer
from kvmesh.tokenizer import Tokenizer
from kvmesh.v1 import generate_pb2 as pb

LEAST = -9999.0
"""What JSON gets for minus infinity, as vLLM does it."""


class Spelling:
    """How tokens are written in log-probabilities."""

    def __init__(self, tokenizer: Tokenizer, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def bytes_of(self, token_id: int) -> bytes:
        if self._as_ids:
            return f"token_id:{token_id}".encode()
        return self._tokenizer.token_bytes(token_id)

    def text_of(self, token_id: int) -> str:
        """Bytes that are no whole character become U+FFFD."""
        return self.bytes_of(token_id).decode("utf-8", errors="replace")

    def key_of(self, token_id: int) -> str:
        """As OpenAI writes the keys of an object: parts of characters stay different."""
        spelled = self.bytes_of(token_id)
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


class LogprobForm(ABC):
    """The log-probabilities of one choice, in the order of its tokens.

    What `add` returns is for one piece of a stream; `merged` makes one of several pieces.
    """

    @abstractmethod
    def add(self, token_ids: Sequence[int], entries: Sequence[pb.TokenLogprobs]) -> dict[str, Any]:
        """One entry a token."""

    @staticmethod
    def merged(pieces: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        if not pieces:
            return None
        whole = {name: list(value) if value else value for name, value in pieces[0].items()}
        for piece in pieces[1:]:
            for name, value in piece.items():
                if value is not None:
                    whole[name] += value
        return whole


class ChatLogprobs(LogprobForm):
    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling

    def add(self, token_ids: Sequence[int], entries: Sequence[pb.TokenLogprobs]) -> dict[str, Any]:
        content = [
            {
                **self._entry(token, entry.logprob),
                "top_logprobs": [self._entry(top.token_id, top.logprob) for top in entry.top],
            }
            for token, entry in zip(token_ids, entries, strict=True)
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._spelling.text_of(token_id),
            "logprob": max(logprob, LEAST),
            "bytes": list(self._spelling.bytes_of(token_id)),
        }


class CompletionLogprobs(LogprobForm):
    """`text_offset` counts the characters of the choice's text before a token, an echoed prompt
    included; a token that has no text of its own is where the next one is.
    """

    def __init__(
        self, spelling: Spelling, detokenizer: IncrementalDetokenizer, echoed: str
    ) -> None:
        self._spelling = spelling
        self._detokenizer = detokenizer
        self._offset = len(echoed)

    def add(self, token_ids: Sequence[int], entries: Sequence[pb.TokenLogprobs]) -> dict[str, Any]:
        return {
            "text_offset": [self._next_offset(token) for token in token_ids],
            "token_logprobs": [max(entry.logprob, LEAST) for entry in entries],
            "tokens": [self._spelling.key_of(token) for token in token_ids],
            "top_logprobs": [
                self._top(token, entry) for token, entry in zip(token_ids, entries, strict=True)
            ],
        }

    def _next_offset(self, token_id: int) -> int:
        offset = self._offset
        self._offset += len(self._detokenizer.push(token_id))
        return offset

    def _top(self, token_id: int, entry: pb.TokenLogprobs) -> dict[str, float]:
        """The most probable ones and, whatever its rank, the token itself."""
        top = {self._spelling.key_of(each.token_id): max(each.logprob, LEAST) for each in entry.top}
        return {**top, self._spelling.key_of(token_id): max(entry.logprob, LEAST)}


def echoed_logprobs(
    prompt: str,
    token_ids: Sequence[int],
    entries: Sequence[pb.TokenLogprobs],
    tokenizer: Tokenizer,
    spelling: Spelling,
) -> dict[str, Any]:
    """Those of an echoed prompt, whose first token has none.

    A special token that the tokenizer put in, such as a BOS, takes no place in the text.
    """
    form = CompletionLogprobs(spelling, _EchoedText(prompt, tokenizer), "")
    said = form.add(token_ids, [pb.TokenLogprobs(), *entries])
    said["token_logprobs"][0] = None
    said["top_logprobs"][0] = None
    return said


class _EchoedText(IncrementalDetokenizer):
    """Gives a special token's text only where the prompt has it."""

    def __init__(self, prompt: str, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer, skip_special_tokens=False)
        self._prompt = prompt
        self._special = tokenizer.special_ids
        self._tokenizer = tokenizer
        self._offset = 0

    def push(self, token_id: int) -> str:
        if token_id in self._special:
            text = self._tokenizer.token_bytes(token_id).decode("utf-8", errors="replace")
            if not self._prompt.startswith(text, self._offset):
                return ""
        else:
            text = super().push(token_id)
        self._offset += len(text)
        return text


def prompt_logprobs(
    token_ids: Sequence[int], entries: Sequence[pb.TokenLogprobs], spelling: Spelling
) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: an object by token id for each token, null for the first."""
    following = zip(token_ids[1:], entries, strict=True)
    return [None, *(_by_id(token, entry, spelling) for token, entry in following)]


def _by_id(token_id: int, entry: pb.TokenLogprobs, spelling: Spelling) -> dict[str, Any]:
    ranked = [(each.token_id, each.logprob, rank) for rank, each in enumerate(entry.top, 1)]
    return {
        str(token): {
            "logprob": max(logprob, LEAST),
            "rank": rank,
            "decoded_token": spelling.text_of(token),
        }
        for token, logprob, rank in [*ranked, (token_id, entry.logprob, entry.rank)]
    }
