"""What the frames of one prompt's answer have said so far, by choice."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kvmesh.detokenizer import IncrementalDetokenizer
from kvmesh.packing import unpack_tokens
from kvmesh.v1 import generate_pb2 as pb
from router.answer import Answer
from router.openai_logprobs import (
    ChatLogprobs,
    CompletionLogprobs,
    LogprobForm,
    Spelling,
    echoed_logprobs,
    prompt_logprobs,
)
from router.openai_requests import AnswerOptions

_FINISH = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_ABORT: "abort",
}


@dataclass(slots=True)
class Piece:
    """News of one choice. `index` counts the choices of all prompts of a request."""

    index: int
    text: str = ""
    token_ids: list[int] | None = None  # when asked for
    logprobs: dict[str, Any] | None = None  # when asked for
    finish: str | None = None
    stop_reason: int | str | None = None

    @property
    def says_something(self) -> bool:
        return bool(self.text or self.logprobs or self.token_ids)


class Transcript:
    """Owned by the task that reads the answer."""

    def __init__(
        self,
        answer: Answer,
        options: AnswerOptions,
        *,
        chat: bool,
        place: int,
        ttft_us: int,
    ) -> None:
        self.place = place
        self.model = answer.model
        self.report = answer.report
        self.summary = pb.Summary()
        self.ttft_us = ttft_us
        self._generated: defaultdict[int, int] = defaultdict(int)  # tokens by choice
        self._prompt = answer.prompt
        self._options = options
        self._tokenizer = answer.model.tokenizer
        self._chat = chat
        self._first = place * options.n
        self._ended: set[int] = set()
        self._prompt_entries: list[pb.TokenLogprobs] = []
        self._spelling = Spelling(self._tokenizer, options.tokens_as_ids)
        self._echo = self._echoed_text() if options.echo else ""
        self._forms: dict[int, LogprobForm] = {}

    @property
    def indices(self) -> range:
        """Of all choices of this prompt."""
        return range(self._first, self._first + self._options.n)

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt's log-probabilities have come."""
        return bool(self._prompt_entries)

    @property
    def prompt_ids(self) -> list[int]:
        return unpack_tokens(self._prompt.token_ids)

    @property
    def prompt_tokens(self) -> int:
        """Known before the node has said how many."""
        return self.summary.usage.prompt_tokens or self.report.prompt_tokens

    def read(self, raw: bytes) -> list[Piece]:
        """Takes in a frame."""
        frame = pb.GenerateResponse.FromString(raw)
        if frame.HasField("summary"):
            self.summary = frame.summary
        self._prompt_entries.extend(frame.prompt_logprobs)
        return [self._piece(delta) for delta in frame.deltas]

    def echoes(self) -> list[Piece]:
        """The prompt as the beginning of each choice; with log-probabilities only when the last
        frame, which has them, has been read.
        """
        logprobs = self._echoed_logprobs() if self._options.logprobs else None
        return [Piece(index, self._echo, logprobs=logprobs) for index in self.indices]

    def missing_ends(self) -> list[Piece]:
        """Choices that no frame has ended: those of a request for no tokens."""
        return [Piece(index, finish="length") for index in self.indices if index not in self._ended]

    def prompt_logprobs(self) -> list[dict[str, Any] | None]:
        return prompt_logprobs(self.prompt_ids, self._prompt_entries, self._spelling)

    def usage_so_far(self, index: int) -> dict[str, int]:
        """vLLM's `continuous_usage_stats`: the prompt and one choice."""
        generated = self._generated[index]
        total = self.prompt_tokens + generated
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": total,
        }

    def kvmesh(self) -> dict[str, Any]:
        """What the fleet did for this prompt; not part of OpenAI's answer."""
        cached = self.summary.usage.cached
        return {
            "request_id": self.report.request_id,
            "node": self.report.node,
            "reason": self.report.reason,
            "attempt": self.report.attempt,
            "seed": self.report.seed,
            "predicted_cached_tokens": self.report.predicted_cached_tokens,
            "cached_tokens": {"gpu": cached.gpu, "cpu": cached.cpu, "remote": cached.remote},
            "router_ms": self.report.router_us / 1e3,
            "tokenize_ms": self.report.tokenize_us / 1e3,
            "queue_ms": self.summary.queue_us / 1e3,
            "prefill_ms": self.summary.prefill_us / 1e3,
            "ttft_ms": self.ttft_us / 1e3,
            "preemptions": self.summary.preemptions,
        }

    def _piece(self, delta: pb.SampleDelta) -> Piece:
        index = self._first + delta.index
        self._generated[index] += len(delta.token_ids) // 4
        piece = Piece(index, delta.text)
        if self._options.token_ids:
            piece.token_ids = unpack_tokens(delta.token_ids)
        if self._options.logprobs and delta.logprobs:
            form = self._form(index)
            piece.logprobs = form.add(unpack_tokens(delta.token_ids), delta.logprobs)
        if delta.finish_reason:
            self._ended.add(index)
            piece.finish = _FINISH.get(delta.finish_reason, "stop")
            piece.stop_reason = delta.stop_reason or self._stop_token(delta)
        return piece

    def _stop_token(self, delta: pb.SampleDelta) -> int | None:
        """The token of `stop_token_ids` that ended a choice."""
        stopped = delta.finish_reason == pb.FINISH_REASON_STOP
        if not (stopped and delta.token_ids and self._options.stop_token_ids):
            return None
        last = unpack_tokens(delta.token_ids)[-1]
        return last if last in self._options.stop_token_ids else None

    def _form(self, index: int) -> LogprobForm:
        """The log-probabilities of a choice, which go on where the last ones ended."""
        if index not in self._forms:
            self._forms[index] = self._make_form()
        return self._forms[index]

    def _make_form(self) -> LogprobForm:
        if self._chat:
            return ChatLogprobs(self._spelling)
        skip = self._options.skip_special_tokens
        detokenizer = IncrementalDetokenizer(self._tokenizer, skip_special_tokens=skip)
        return CompletionLogprobs(self._spelling, detokenizer, self._echo)

    def _echoed_text(self) -> str:
        """A text as it was sent, ids as what they stand for."""
        if self._prompt.text is not None:
            return self._prompt.text
        return self._tokenizer.decode(self.prompt_ids, skip_special_tokens=False)

    def _echoed_logprobs(self) -> dict[str, Any]:
        ids, entries = self.prompt_ids, self._prompt_entries
        return echoed_logprobs(self._echo, ids, entries, self._tokenizer, self._spelling)


def usage(transcripts: Iterable[Transcript]) -> dict[str, Any]:
    """Tokens of all prompts of a request."""
    prompt = completion = cached = 0
    for transcript in transcripts:
        spent = transcript.summary.usage
        prompt += transcript.prompt_tokens
        completion += spent.completion_tokens
        cached += spent.cached.gpu + spent.cached.cpu + spent.cached.remote
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
