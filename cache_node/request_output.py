"""From the chosen tokens of a request to what its client is told."""

from collections.abc import Callable

from cache_node.output_text import OutputText
from cache_node.sampling import Choice
from cache_node.scheduler import Sampled
from cache_node.sequence import FinishReason, Request
from cache_node.step_output import Delta


class RequestOutput:
    """The samples' texts and, when more samples are made than are wanted, their ranking.

    Owned by the engine's thread. The scheduler knows when tokens end a sample; a stop string is
    found here.
    """

    def __init__(self, request: Request, make_text: Callable[[int], OutputText]) -> None:
        self.request = request
        self._make_text = make_text
        self._reports = request.params.logprobs is not None  # else they only serve the ranking
        self._texts: dict[int, OutputText] = {}
        self._kept: list[Delta] = []  # of all samples, until the best are known

    def push(self, sampled: Sampled) -> Delta:
        """What a chosen token tells; its `finish_reason` says whether the sample ends with it."""
        sequence, choice = sampled.sequence, sampled.choice
        if choice is None:
            return Delta(request_id=self.request.id, finish_reason=sampled.finish_reason)
        text, stop = self._text(sequence.sample_index, choice, sampled.finish_reason)
        return Delta(
            request_id=self.request.id,
            sample=sequence.sample_index,
            tokens=(choice.token,),
            text=text,
            logprobs=(choice.logprobs,) if choice.logprobs and self._reports else (),
            finish_reason=FinishReason.STOP if stop else sampled.finish_reason,
            stop_reason=stop,
        )

    def release(self, delta: Delta) -> list[Delta]:
        """What may be sent now. With best_of > n nothing until the last sample has ended; then the
        best, the best first.
        """
        if self.request.samples == self.request.params.n or not self.request.params.max_tokens:
            return [delta]
        self._kept.append(delta)
        return self._best() if self.request.unfinished == 0 else []

    def _text(self, sample: int, choice: Choice, reason: FinishReason | None) -> tuple[str, str]:
        """The new text, and the stop string that it ended at. A stop token has no text."""
        if sample not in self._texts:
            self._texts[sample] = self._make_text(sample)
        output = self._texts[sample]
        if reason is FinishReason.STOP:
            return output.flush(), ""
        text, stop = output.push(choice.token)
        if reason is not None and stop is None:
            text += output.flush()
        return text, stop or ""

    def _best(self) -> list[Delta]:
        """By log-probability a token, as OpenAI describes best_of."""
        ranked = sorted(
            self.request.sequences,
            key=lambda seq: seq.score / max(1, seq.num_output),
            reverse=True,
        )
        places = {seq.sample_index: place for place, seq in enumerate(ranked)}
        return [
            _merged(places[sample], [delta for delta in self._kept if delta.sample == sample])
            for sample in sorted(places, key=lambda sample: places[sample])[: self.request.params.n]
        ]


def _merged(place: int, deltas: list[Delta]) -> Delta:
    last = deltas[-1]
    return Delta(
        request_id=last.request_id,
        sample=place,
        tokens=[token for delta in deltas for token in delta.tokens],
        text="".join(delta.text for delta in deltas),
        logprobs=[logprobs for delta in deltas for logprobs in delta.logprobs],
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
    )
