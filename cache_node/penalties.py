"""What is done to a row's logits before temperature: banned tokens, logit bias, penalties.

The formulas are vLLM's and OpenAI's; a token's count c is over the output alone, and only the
repetition penalty looks at the prompt as well:

    logit + bias
    logit / repetition  if logit > 0 else  logit · repetition      where the token was seen
    logit - frequency · c - presence                               where c > 0
"""

import numpy as np

from cache_node.logprobs import FloatArray
from cache_node.sampling import SampleSpec

LARGEST = np.finfo(np.float32).max


def adjusted(logits: FloatArray, spec: SampleSpec) -> FloatArray:
    """A changed copy of `logits` [vocab_size], or `logits` itself when nothing is to be done.

    Counts are made anew from the tokens each time: a step needs nothing but its plan.
    """
    params = spec.params
    if not (spec.banned or params.logit_bias or params.penalised):
        return logits
    scores = logits.copy()
    if spec.banned:
        scores[list(spec.banned)] = -np.inf
    if params.logit_bias:
        scores[list(params.logit_bias)] += np.fromiter(params.logit_bias.values(), np.float32)
    if params.repetition_penalty != 1.0:
        _penalise_repetition(scores, spec)
    if params.frequency_penalty or params.presence_penalty:
        _penalise_output(scores, spec)
    return scores


def _penalise_repetition(scores: FloatArray, spec: SampleSpec) -> None:
    # A token that occurs often is read and written often, with the same values: no need to sort.
    seen = np.array([*spec.prompt, *spec.output], dtype=np.intp)
    values, penalty = scores[seen], np.float32(spec.params.repetition_penalty)
    with np.errstate(over="ignore"):
        positive = np.minimum(values / penalty, LARGEST)
        scores[seen] = np.where(values > 0.0, positive, values * penalty)


def _penalise_output(scores: FloatArray, spec: SampleSpec) -> None:
    output = np.array(spec.output, dtype=np.intp)
    tokens, counts = np.unique(output, return_counts=True)
    scores[tokens] -= np.float32(spec.params.frequency_penalty) * counts.astype(np.float32)
    scores[tokens] -= np.float32(spec.params.presence_penalty)
