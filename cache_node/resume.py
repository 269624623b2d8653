"""A request that goes on here because another node has lost it: what its samples have so far."""

from collections.abc import Callable, Sequence

from cache_node.output_text import OutputText
from cache_node.sampling import SamplingParams
from cache_node.sequence import Progress
from kvmesh import validation
from kvmesh.errors import RequestError, invalid
from kvmesh.packing import unpack_tokens
from kvmesh.v1 import cache_node_pb2 as pb

MakeText = Callable[[int], OutputText]
"""The text of a sample, by its index."""


def read_progress(
    resume: Sequence[pb.Resume], params: SamplingParams, vocab_size: int
) -> tuple[Progress, ...]:
    """One a sample, in their order; empty for a request that begins here.

    Raises INVALID_ARGUMENT that names the field.
    """
    if not resume:
        return ()
    if params.best_of > params.n:
        raise invalid("resume", "must be empty with best_of above n: nothing is sent before")
    if sorted(each.index for each in resume) != list(range(params.n)):
        raise invalid("resume", f"must have one entry for each of {params.n} samples")
    by_index = sorted(resume, key=lambda each: each.index)
    progress = tuple(_progress(each, params.max_tokens, vocab_size) for each in by_index)
    if all(each.finished for each in progress):
        raise invalid("resume", "must leave a sample to go on with, all are finished")
    return progress


def resumed_texts(resume: Sequence[pb.Resume], make_text: MakeText) -> MakeText:
    """The texts of the samples where they stand. Takes a while for long outputs.

    Raises INVALID_ARGUMENT when a client has more text than the tokens make.
    """
    texts = {each.index: _replayed(each, make_text) for each in resume if not each.finished}
    return lambda sample: texts[sample] if sample in texts else make_text(sample)


def _progress(resume: pb.Resume, max_tokens: int, vocab_size: int) -> Progress:
    field = f"resume[{resume.index}].token_ids"
    try:
        tokens = unpack_tokens(resume.token_ids)
    except ValueError:
        size = len(resume.token_ids)
        raise invalid(field, f"must be packed uint32, a multiple of 4 bytes, has {size}") from None
    validation.check_token_ids(field, tokens, vocab_size)
    most = max_tokens if resume.finished else max_tokens - 1
    if len(tokens) > most:
        raise invalid(field, f"must have at most {most} tokens of {max_tokens}, has {len(tokens)}")
    return Progress(tokens, resume.finished)


def _replayed(resume: pb.Resume, make_text: MakeText) -> OutputText:
    text = make_text(resume.index)
    try:
        text.replay(unpack_tokens(resume.token_ids), resume.text_bytes_sent)
    except ValueError as error:
        field = f"resume[{resume.index}].text_bytes_sent"
        raise _wrong_text(field, error) from error
    return text


def _wrong_text(field: str, error: ValueError) -> RequestError:
    if isinstance(error, UnicodeDecodeError):
        return invalid(field, "must not end inside a character")
    return invalid(field, str(error))
