"""vLLM's /tokenize and /detokenize."""

from typing import Any

from kvmesh.errors import invalid
from kvmesh.packing import pack_tokens, unpack_tokens
from kvmesh.v1 import inference_pb2 as pb
from router.exchange import Exchange
from router.http_endpoint import Endpoint, off_loop
from router.http_io import parse_body, read_json, validated
from router.openai_answers import encoded
from router.openai_chat import Conversation
from router.openai_fields import Text, TokenIds
from router.openai_requests import Body


class TextToTokenize(Body):
    prompt: Text
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    def to_request(self) -> pb.TokenizeRequest:
        return pb.TokenizeRequest(
            model=self.model or "", text=self.prompt, add_special_tokens=self.add_special_tokens
        )


class ChatToTokenize(Conversation):
    return_token_strs: bool | None = None

    def to_request(self) -> pb.TokenizeRequest:
        """Raises INVALID_ARGUMENT and UNIMPLEMENTED by field."""
        return pb.TokenizeRequest(model=self.model or "", chat=self.to_chat())


class TokensToText(Body):
    tokens: TokenIds

    @property
    def names(self) -> dict[str, str]:
        return {"token_ids": "tokens"}


class TokenizeEndpoint(Endpoint):
    """POST /tokenize: a prompt, or messages, as the model would see it."""

    async def _answer(self, raw: bytes, exchange: Exchange) -> None:
        wants_names, request = await off_loop(raw, lambda: _read(raw))
        response = await self._core.tokenize(request)
        tokens = unpack_tokens(response.token_ids)
        answer: dict[str, Any] = {
            "count": response.count,
            "max_model_len": response.max_model_len,
            "tokens": tokens,
            "token_strs": None,
        }
        if wants_names:
            name = self._core.model(request.model).tokenizer.token_name
            answer["token_strs"] = [name(token) for token in tokens]
        await exchange.send_json(encoded(answer))


def _read(raw: bytes) -> tuple[bool, pb.TokenizeRequest]:
    """Whether names of the tokens are wanted, and what to tokenise. Raises RequestError."""
    value = read_json(raw)
    if "prompt" in value and "messages" in value:
        raise invalid("messages", "must not be set beside prompt, leave one of them out")
    kind: type[ChatToTokenize | TextToTokenize]
    kind = ChatToTokenize if "messages" in value else TextToTokenize
    body = validated(value, kind)
    return bool(body.return_token_strs), body.to_request()


class DetokenizeEndpoint(Endpoint):
    """POST /detokenize: the text of token ids, special ones included."""

    async def _answer(self, raw: bytes, exchange: Exchange) -> None:
        body = await off_loop(raw, lambda: parse_body(raw, TokensToText))
        exchange.names = body.names
        ids = pack_tokens(body.tokens)
        request = pb.DetokenizeRequest(model=body.model or "", token_ids=ids)
        await exchange.send_json(encoded({"prompt": await self._core.detokenize(request)}))
