"""From a request to the tokens that the model sees and the keys of their blocks."""

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from kvmesh.errors import invalid
from kvmesh.packing import all_below, pack_tokens, unpack_tokens
from kvmesh.v1 import generate_pb2 as pb
from kvmesh.v1 import inference_pb2
from kvmesh.validation import MAX_MESSAGES, check_prompt_length, check_token_ids
from prefix_index.keys import block_keys
from router.fleet import Model
from router.tenant_salts import TenantSalts
from router.tenants import Tenant

TOKEN_BYTES = 4

SHORT = 16 << 10
"""Bytes of a request with token ids that is read on the event loop: a thread's round trip costs
more.
"""

_TAKEN = ("messages", "tools", "add_generation_prompt", "self")
"""Template variables that have a field of their own, or are Jinja's."""

T = TypeVar("T")

AnyPrompt = pb.GenerateRequest | inference_pb2.TokenizeRequest


@dataclass(slots=True)  # frozen, it takes a microsecond to make
class Prompt:
    """`keys` are of the blocks that a node may reuse: at least one token is always computed."""

    token_ids: bytes  # little-endian uint32
    count: int
    keys: list[bytes]
    tokenize_us: int
    key_us: int
    text: str | None = None  # of a prompt that came as such
    salt: bytes = b""  # of the tenant, part of the keys
    session: str = ""  # as the client calls the requests that belong together


class PromptReader:
    """Owns the threads that tokenise. At most the router's requests in flight wait for them."""

    def __init__(self, threads: int, salts: TenantSalts) -> None:
        self._salts = salts
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tokenize")

    async def read(self, request: pb.GenerateRequest, model: Model, tenant: Tenant) -> Prompt:
        """With block keys of the tenant.

        Raises INVALID_ARGUMENT for a prompt that is missing, malformed or too long.
        """
        salt = self._salts.of(tenant)
        if request.HasField("token_ids") and request.ByteSize() <= SHORT:
            return _read(request, model, salt)
        return await self._run(lambda: _read(request, model, salt))

    async def tokenize(self, request: inference_pb2.TokenizeRequest, model: Model) -> bytes:
        """Packed token ids, as many as there are. Raises INVALID_ARGUMENT."""
        special = request.add_special_tokens if request.HasField("add_special_tokens") else True
        return await self._run(lambda: _token_ids(request, model, special))

    async def detokenize(self, token_ids: bytes, model: Model, skip_special_tokens: bool) -> str:
        """Raises INVALID_ARGUMENT for ids that the model does not have."""

        def decode() -> str:
            _check_ids(token_ids, model)
            return model.tokenizer.decode(unpack_tokens(token_ids), skip_special_tokens)

        return await self._run(decode)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _read(request: pb.GenerateRequest, model: Model, salt: bytes) -> Prompt:
    start = time.perf_counter_ns()
    token_ids = _token_ids(request, model, add_special_tokens=True)
    count = len(token_ids) // TOKEN_BYTES
    check_prompt_length(count, model.max_model_len)
    tokenized = time.perf_counter_ns()
    keys = [] if request.cache == pb.CACHE_MODE_OFF else _keys(token_ids, model, salt)
    keyed = time.perf_counter_ns()
    return Prompt(
        token_ids,
        count,
        keys,
        tokenize_us=(tokenized - start) // 1000,
        key_us=(keyed - tokenized) // 1000,
        text=request.text if request.HasField("text") else None,
        salt=salt,
        session=request.session,
    )


def _keys(token_ids: bytes, model: Model, salt: bytes) -> list[bytes]:
    return block_keys(model.root_of(salt), memoryview(token_ids)[:-TOKEN_BYTES], model.block_size)


def _token_ids(request: AnyPrompt, model: Model, add_special_tokens: bool) -> bytes:
    match request.WhichOneof("prompt"):
        case "text":
            if not request.text:
                raise invalid("prompt", "must not be empty, send at least one character")
            return pack_tokens(model.tokenizer.encode(request.text, add_special_tokens))
        case "chat":
            text = render(request.chat, model)
            _check_unicode(text)
            return pack_tokens(model.tokenizer.encode(text, add_special_tokens=False))
        case "token_ids":
            assert isinstance(request, pb.GenerateRequest)  # the only one with this form of prompt
            token_ids = request.token_ids  # a copy each time
            check_prompt_length(_count(token_ids), model.max_model_len)
            _check_ids(token_ids, model)
            return token_ids
    raise invalid("prompt", "is missing: set one of text, chat, token_ids")


def _count(token_ids: bytes) -> int:
    if len(token_ids) % TOKEN_BYTES:
        raise invalid(
            "token_ids",
            f"must be packed as uint32, a multiple of {TOKEN_BYTES} bytes, has {len(token_ids)}",
        )
    return len(token_ids) // TOKEN_BYTES


def _check_ids(token_ids: bytes, model: Model) -> None:
    _count(token_ids)
    if not all_below(token_ids, model.vocab_size):
        check_token_ids("token_ids", unpack_tokens(token_ids), model.vocab_size)


def render(chat: pb.Chat, model: Model) -> str:
    """The chat as the model's template writes it. Raises INVALID_ARGUMENT by field."""
    if not chat.messages:
        raise invalid("messages", "must not be empty, send at least one message")
    if len(chat.messages) > MAX_MESSAGES:
        raise invalid(
            "messages", f"must have at most {MAX_MESSAGES} entries, has {len(chat.messages)}"
        )
    messages = [_message(place, message) for place, message in enumerate(chat.messages)]
    tools = _json("tools_json", chat.tools_json, list) if chat.tools_json else None
    variables = _variables(chat.template_args_json)
    prompted = chat.add_generation_prompt if chat.HasField("add_generation_prompt") else True
    try:
        return model.tokenizer.apply_chat_template(
            messages, add_generation_prompt=prompted, tools=tools, **variables
        )
    except (ValueError, TypeError) as error:
        raise invalid("messages", str(error)) from error


def _variables(template_args_json: str) -> dict[str, Any]:
    field = "template_args_json"
    variables: dict[str, Any] = _json(field, template_args_json, dict) or {}
    for name in _TAKEN:
        if name in variables:
            raise invalid(field, f"must not set {name}, which is not its to set")
    return variables


def _message(place: int, message: pb.ChatMessage) -> dict[str, Any]:
    if not message.role:
        raise invalid(
            f"messages[{place}].role", "must not be empty, send system, user or assistant"
        )
    extra = _json(f"messages[{place}].extra_json", message.extra_json, dict) or {}
    return {**extra, "role": message.role, "content": message.content}


def _check_unicode(text: str) -> None:
    """JSON inside a message can smuggle in half a surrogate pair, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise invalid("messages", f"must be valid Unicode: {error.reason}") from error


def _json(field: str, text: str, kind: type) -> Any:
    """The parsed value, None for an empty text."""
    if not text:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise invalid(field, f"is not JSON: {error}") from error
    if not isinstance(value, kind):
        raise invalid(field, f"must be a JSON {'array' if kind is list else 'object'}")
    return value
