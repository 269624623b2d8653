"""OpenAI's two generating endpoints."""

import asyncio

from kvmesh.errors import RequestError
from kvmesh.v1 import generate_pb2 as pb
from router.config import RouterConfig
from router.core import Caller, RouterCore
from router.exchange import Exchange
from router.http_endpoint import Endpoint, off_loop
from router.http_errors import in_openais_words
from router.http_io import parse_body
from router.metadata import trace
from router.openai_chat import ChatBody
from router.openai_completions import DEFAULT_MAX_TOKENS, CompletionBody
from router.openai_replies import Asked, Reply, StreamReply, WholeReply

Body = CompletionBody | ChatBody

SESSION = "x-session-id"
"""Header that names the requests which belong together; goes before the body's prompt_cache_key."""


class GenerationEndpoint(Endpoint):
    """POST /v1/completions or /v1/chat/completions."""

    def __init__(
        self, kind: type[Body], core: RouterCore, config: RouterConfig, closing: asyncio.Event
    ) -> None:
        self._kind = kind
        self._chat = kind is ChatBody
        super().__init__("chat" if self._chat else "completions", core, config, closing)

    async def _answer(self, raw: bytes, exchange: Exchange) -> None:
        asked, requests, reply_form = await off_loop(raw, lambda: self._read(raw, exchange))
        reply = reply_form(asked, exchange)
        caller = Caller(
            self._name,
            exchange.tenant,
            trace(exchange.request.headers),
            default_max_tokens=None if self._chat else DEFAULT_MAX_TOKENS,
        )
        if len(requests) == 1:
            await self._run(0, requests[0], caller, reply)
        else:
            await self._run_all(requests, caller, reply)

    def _read(
        self, raw: bytes, exchange: Exchange
    ) -> tuple[Asked, list[pb.GenerateRequest], type[Reply]]:
        """What is asked, one request a prompt, and the form of the reply. Raises RequestError."""
        body = parse_body(raw, self._kind)
        session = exchange.request.headers.get(SESSION, "")
        exchange.names = {**body.names, "session": SESSION if session else "prompt_cache_key"}
        request_id = exchange.request_id(body.request_id)
        requests = body.to_requests(request_id)
        for request in requests:
            request.session = session or request.session
        asked = Asked(self._chat, request_id, len(requests), body.options)
        return asked, requests, StreamReply if body.streams else WholeReply

    async def _run(
        self, place: int, request: pb.GenerateRequest, caller: Caller, reply: Reply
    ) -> None:
        async with self._core.generate(request, caller) as answer:
            transcript = await reply.begin(place, answer)
            while (frame := await answer.read()) is not None:
                await reply.take(transcript, frame)
            transcript.summary = await answer.summary()
            await reply.end(transcript)

    async def _run_all(
        self, requests: list[pb.GenerateRequest], caller: Caller, reply: Reply
    ) -> None:
        """Side by side, once all are found right. The first that fails ends the others."""
        together = caller._replace(ready=asyncio.Barrier(len(requests)).wait)

        async def run(place: int) -> None:
            try:
                await self._run(place, requests[place], together, reply)
            except RequestError as error:
                raise _of_prompt(place, error) from error

        with self._core.more_places(caller.tenant, len(requests) - 1):
            try:
                async with asyncio.TaskGroup() as group:
                    for place in range(len(requests)):
                        group.create_task(run(place))
            except BaseExceptionGroup as failures:
                raise failures.exceptions[0] from None


def _of_prompt(place: int, error: RequestError) -> RequestError:
    """About one prompt of several."""
    name = f"prompt[{place}]"
    return in_openais_words(error, {"prompt": name, "text": name, "token_ids": name})
