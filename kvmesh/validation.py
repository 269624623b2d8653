"""What a request may contain: checked by the router at its edge, and by the node, the authority."""

import math
import re
from collections.abc import Iterable

from kvmesh.errors import invalid, unimplemented
from kvmesh.v1 import generate_pb2 as pb

MAX_STOP_STRINGS, MAX_STOP_CHARACTERS, MAX_STOP_TOKENS = 16, 256, 256
MAX_SAMPLES, MAX_BIASES, MAX_LOGPROBS = 128, 1024, 20
MAX_MESSAGES = 4096
MAX_SESSION_BYTES = 256
PRIORITIES = range(-100, 101)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

# field → least, greatest, whether the least is outside the range
_RANGES = {
    "temperature": (0.0, 100.0, False),
    "top_p": (0.0, 1.0, True),
    "min_p": (0.0, 1.0, False),
    "repetition_penalty": (0.0, 10.0, True),
    "presence_penalty": (-2.0, 2.0, False),
    "frequency_penalty": (-2.0, 2.0, False),
}
_ANY_VALUE = frozenset(
    pb.SamplingParams.DESCRIPTOR.fields_by_name[name]
    for name in ("max_tokens", "seed", "ignore_eos", "skip_special_tokens")
)
_CACHE_MODES = frozenset(pb.CacheMode.values())


def check_number(
    field: str, value: float, least: float, greatest: float, *, open_below: bool = False
) -> None:
    """Raises INVALID_ARGUMENT unless `value` is a number in [least, greatest].

    `open_below` makes it (least, greatest].
    """
    if math.isnan(value) or math.isinf(value):
        raise invalid(field, f"must be a finite number, is {value}")
    if value < least or value > greatest or (open_below and value == least):
        bracket = "(" if open_below else "["
        # Six digits would show one that is just outside as the bound itself.
        shown = f"{value:g}" if abs(value) > 2 * greatest else f"{value:.9g}"
        raise invalid(field, f"must be in {bracket}{least:g}, {greatest:g}], is {shown}")


def check_sampling(params: pb.SamplingParams, vocab_size: int) -> None:
    """Raises INVALID_ARGUMENT for the first field that is wrong."""
    fields = params.ListFields()
    if all(field in _ANY_VALUE for field, _ in fields):
        return  # most requests: a sixth of the time of the rest
    given = {field.name: value for field, value in fields}
    for field, (least, greatest, open_below) in _RANGES.items():
        if field in given:
            check_number(field, given[field], least, greatest, open_below=open_below)
    _check_samples(params)
    if (
        params.HasField("min_tokens")
        and params.HasField("max_tokens")
        and params.min_tokens > params.max_tokens
    ):
        raise invalid(
            "min_tokens",
            f"must be at most max_tokens ({params.max_tokens}), is {params.min_tokens}",
        )
    _check_stops(params, vocab_size)
    _check_bias(params, vocab_size)
    for field in ("logprobs", "prompt_logprobs"):
        wanted = getattr(params, field)
        if wanted > MAX_LOGPROBS:
            raise invalid(field, f"must be in [0, {MAX_LOGPROBS}], is {wanted}")


def _check_samples(params: pb.SamplingParams) -> None:
    n = params.n if params.HasField("n") else 1
    if not 1 <= n <= MAX_SAMPLES:
        raise invalid("n", f"must be in [1, {MAX_SAMPLES}], is {n}")
    if params.HasField("best_of") and not n <= params.best_of <= MAX_SAMPLES:
        raise invalid("best_of", f"must be in [{n}, {MAX_SAMPLES}], from n on, is {params.best_of}")


def _check_bias(params: pb.SamplingParams, vocab_size: int) -> None:
    if len(params.logit_bias) > MAX_BIASES:
        raise invalid(
            "logit_bias", f"must have at most {MAX_BIASES} entries, has {len(params.logit_bias)}"
        )
    for token, bias in params.logit_bias.items():
        if token >= vocab_size:
            raise invalid(
                "logit_bias", f"token ids must be in [0, {vocab_size - 1}], one is {token}"
            )
        check_number(f"logit_bias[{token}]", bias, -100.0, 100.0)


def _check_stops(params: pb.SamplingParams, vocab_size: int) -> None:
    if len(params.stop) > MAX_STOP_STRINGS:
        raise invalid(
            "stop", f"must have at most {MAX_STOP_STRINGS} strings, has {len(params.stop)}"
        )
    for text in params.stop:
        if not 1 <= len(text) <= MAX_STOP_CHARACTERS:
            raise invalid(
                "stop",
                f"each string must have 1 to {MAX_STOP_CHARACTERS} characters, one has {len(text)}",
            )
    if len(params.stop_token_ids) > MAX_STOP_TOKENS:
        raise invalid(
            "stop_token_ids",
            f"must have at most {MAX_STOP_TOKENS} ids, has {len(params.stop_token_ids)}",
        )
    check_token_ids("stop_token_ids", params.stop_token_ids, vocab_size)


def check_token_ids(field: str, ids: Iterable[int], vocab_size: int) -> None:
    """Raises INVALID_ARGUMENT for the first id that the model does not have."""
    for place, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise invalid(
                field, f"token ids must be in [0, {vocab_size - 1}], the one at {place} is {token}"
            )


def check_prompt_length(count: int, max_model_len: int) -> None:
    """Raises INVALID_ARGUMENT unless there are 1 to max_model_len - 1: one must fit behind them."""
    if count == 0:
        raise invalid("prompt", "must not be empty, send at least one token")
    if count >= max_model_len:
        raise invalid(
            "prompt",
            f"must have at most {max_model_len - 1} tokens "
            f"(the model's context is {max_model_len}), has {count}",
        )


def is_request_id(text: str) -> bool:
    return _REQUEST_ID.fullmatch(text) is not None


def check_request_id(request_id: str) -> None:
    if request_id and not is_request_id(request_id):
        raise invalid("request_id", "must be 1 to 128 characters of A-Z a-z 0-9 . _ : -")


def check_session(session: str) -> None:
    if len(session.encode()) > MAX_SESSION_BYTES:
        raise invalid("session", f"must have at most {MAX_SESSION_BYTES} bytes")


def check_priority(priority: int) -> None:
    if priority not in PRIORITIES:
        raise invalid("priority", f"must be in [{PRIORITIES[0]}, {PRIORITIES[-1]}], is {priority}")


def check_cache_mode(mode: int) -> None:
    """A mode of a later version may ask for less trace in the cache than the default leaves."""
    if mode not in _CACHE_MODES:
        names = ", ".join(pb.CacheMode.keys())
        raise invalid("cache", f"must be one of {names}, is {mode}")


def check_unserved(request: pb.GenerateRequest) -> None:
    if request.adapter:
        raise unimplemented("adapter", "no adapters are served by this version, leave it empty")


def resolve_max_tokens(params: pb.SamplingParams, prompt_tokens: int, max_model_len: int) -> int:
    """max_tokens as the node needs it: what was asked for, or all that the context leaves.

    0 computes the prompt and nothing else. Raises INVALID_ARGUMENT when prompt and output together
    exceed the context.
    """
    room = max_model_len - prompt_tokens
    if not params.HasField("max_tokens"):
        return room
    if params.max_tokens > room:
        raise invalid(
            "max_tokens",
            f"must be at most {room} (context {max_model_len} less {prompt_tokens} prompt tokens), "
            f"is {params.max_tokens}",
        )
    return params.max_tokens
