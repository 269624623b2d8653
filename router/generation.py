"""OpenAI's two generating endpoints, as ASGI applications."""

import asyncio
from collections.abc import AsyncIterator

from starlette.types import Receive, Scope, Send

from kvmesh.v1 import generate_pb2 as pb
from router.answer import Answer
from router.core import Caller, RouterCore
from router.exchange import Exchange
from router.failures import as_request_error
from router.http_io import parse_body, read_body
from router.metadata import trace
from router.openai_answers import DONE, AnswerForm, Transcript, event
from router.openai_requests import ChatBody, CompletionBody

SMALL = 64 << 10
"""Bytes of a body that are read on the event loop: a thread's round trip costs more."""


Body = CompletionBody | ChatBody


class GenerationEndpoint:
    """POST /v1/completions or /v1/chat/completions. A client that leaves ends the node's work."""

    def __init__(
        self, core: RouterCore, kind: type[CompletionBody] | type[ChatBody], max_bytes: int
    ) -> None:
        self._core = core
        self._kind = kind
        self._max_bytes = max_bytes
        self._chat = kind is ChatBody
        self._name = "chat" if self._chat else "completions"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            with self._core.arrival(self._name):
                raw = await read_body(exchange.request, self._max_bytes)
                await exchange.while_there(self._answer(raw, exchange))
        except Exception as error:  # noqa: BLE001  # whatever it is, the client gets an answer
            await exchange.fail(as_request_error(error))

    async def _answer(self, raw: bytes, exchange: Exchange) -> None:
        if len(raw) <= SMALL:
            body, request = self._parsed(raw, exchange)
        else:
            body, request = await asyncio.to_thread(self._parsed, raw, exchange)
        caller = Caller(self._name, trace(exchange.request.headers))
        async with self._core.generate(request, caller) as answer:
            ttft_us = exchange.elapsed_us()
            model = self._core.fleet.model.name
            form = AnswerForm(chat=self._chat, model=model, request_id=answer.report.request_id)
            if body.streams:
                await exchange.start_stream(answer)
                await self._stream(answer, form, ttft_us, body.wants_usage, exchange)
            else:
                await self._whole(answer, form, ttft_us, exchange)

    def _parsed(self, raw: bytes, exchange: Exchange) -> tuple[Body, pb.GenerateRequest]:
        body = parse_body(raw, self._kind)
        exchange.names = body.names
        return body, body.to_request(exchange.request.headers.get("x-request-id", ""))

    async def _whole(
        self, answer: Answer, form: AnswerForm, ttft_us: int, exchange: Exchange
    ) -> None:
        transcript = Transcript(answer.report)
        text = "".join([piece async for piece in _pieces(answer, transcript)])
        transcript.summary = await answer.summary()
        await exchange.send_json(form.whole(text, transcript, ttft_us), answer)

    async def _stream(
        self,
        answer: Answer,
        form: AnswerForm,
        ttft_us: int,
        with_usage: bool,
        exchange: Exchange,
    ) -> None:
        """The finish reason is held back until the node has said that all is well."""
        transcript = Transcript(answer.report)
        await exchange.write(b"".join(map(event, form.opening())))
        async for text in _pieces(answer, transcript):
            if text:
                await exchange.write(event(form.piece(text)))
        transcript.summary = await answer.summary()
        closing = form.closing(transcript, ttft_us, with_usage=with_usage)
        await exchange.end(b"".join(map(event, closing)) + DONE)


async def _pieces(answer: Answer, transcript: Transcript) -> AsyncIterator[str]:
    while (frame := await answer.read()) is not None:
        yield transcript.read(frame)
