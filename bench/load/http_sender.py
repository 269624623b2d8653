"""Requests to any server that speaks OpenAI's streaming API."""

import asyncio
import json
import ssl
from typing import Any
from urllib.parse import urlsplit

from bench.load.config import LoadConfig
from bench.load.http_stream import HttpError, LineStream, exchange
from bench.load.outcome import Outcome, RequestFailedError
from bench.load.plan import Turn
from bench.load.prompt import Writer
from bench.load.sender import Clock
from bench.openai_stream import SETTINGS, read_event
from kvmesh.addresses import host_and_port

CONNECT = 10.0  # seconds for the list of models
HTTP_PORTS = {"http": 80, "https": 443}


class HttpSender:
    """A `Sender`. Every request has a connection of its own: to connect is part of its latency."""

    def __init__(self, url: str, config: LoadConfig) -> None:
        """`url` may end in /v1. Raises ValueError for a wrong one, and for wrong certificates."""
        parts = urlsplit(url)
        if parts.hostname is None:
            raise ValueError(f"--target: {url} has no host")
        self._host = parts.hostname
        self._port = parts.port or HTTP_PORTS[parts.scheme]
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._tls = _tls(config) if parts.scheme == "https" else None
        self._config = config
        self._writer = Writer(config.seed, config.vocabulary)
        self._model = config.model

    async def open(self) -> None:
        """Asks for the served model, unless the config names one."""
        if self._model is not None:
            return
        lines: list[bytes] = []
        try:
            async with asyncio.timeout(CONNECT):
                answer = await self._exchange(self._head("GET", "/v1/models", 0), lines.append)
            if answer.status != 200:
                raise ConnectionError(f"/v1/models at {self._host}:{self._port}: {_why(answer)}")
            self._model = json.loads(b"\n".join(lines))["data"][0]["id"]
        except (HttpError, OSError, ValueError, LookupError, TypeError) as error:
            where = f"{self._host}:{self._port}"
            raise ConnectionError(f"no OpenAI-compatible server at {where}: {error}") from error

    def prepare(self, turn: Turn) -> bytes:
        if self._config.prompts == "chat":
            path = "/v1/chat/completions"
            prompt: dict[str, Any] = {"messages": self._writer.messages(turn.prompt)}
        elif self._config.prompts == "text":
            path, prompt = "/v1/completions", {"prompt": self._writer.text(turn.prompt)}
        else:
            path, prompt = "/v1/completions", {"prompt": self._writer.token_ids(turn.prompt)}
        wanted = {
            "model": self._model,
            **prompt,
            "max_tokens": turn.output,
            "seed": self._config.seed + turn.number,
            **SETTINGS,
        }
        body = json.dumps(wanted, separators=(",", ":")).encode()
        return self._head("POST", path, len(body)) + body

    async def send(self, body: bytes, outcome: Outcome, clock: Clock) -> None:
        reader = _Reader(outcome, clock)
        try:
            async with asyncio.timeout(self._config.timeout):
                answer = await self._exchange(body, reader.line)
        except TimeoutError as error:
            raise RequestFailedError("timeout") from error
        except HttpError as error:
            raise RequestFailedError("broken answer", str(error)) from error
        except OSError as error:
            raise RequestFailedError(type(error).__name__, str(error)) from error
        if answer.status != 200:
            raise RequestFailedError(f"HTTP {answer.status}", _why(answer))
        outcome.node = answer.headers.get("x-kvmesh-node", "")
        reader.finish()

    async def close(self) -> None:
        """Nothing outlives a request."""

    async def _exchange(self, request: bytes, on_line: Any) -> LineStream:
        return await exchange(self._host, self._port, self._tls, request, on_line)

    def _head(self, method: str, path: str, length: int) -> bytes:
        lines = [
            f"{method} {self._path}{path} HTTP/1.1",
            f"Host: {host_and_port(self._host, self._port)}",
            "Accept: text/event-stream, application/json",
            "Connection: close",
        ]
        if length:
            lines += ["Content-Type: application/json", f"Content-Length: {length}"]
        if self._config.api_key:
            lines.append(f"Authorization: Bearer {self._config.api_key}")
        return "\r\n".join([*lines, "", ""]).encode()


class _Reader:
    """The lines of one answer. An event with text counts as a token until the usage comes."""

    def __init__(self, outcome: Outcome, clock: Clock) -> None:
        self._outcome = outcome
        self._clock = clock
        self._error: str | None = None
        self._counted = False

    def line(self, line: bytes) -> None:
        event = read_event(line)
        if event is None:
            return
        if event.text:
            self._outcome.frame(self._clock(), 1)
        if event.error is not None:
            self._error = event.error
        if event.usage:
            self._counted = True
            self._outcome.output_tokens = _count(event.usage["completion_tokens"])
            self._outcome.prompt_tokens = _count(event.usage.get("prompt_tokens") or 0) or None
            self._outcome.cached_tokens = _count(event.cached_tokens)

    def finish(self) -> None:
        if self._error is not None:
            raise RequestFailedError("error in the stream", self._error)
        if self._outcome.first is None and not self._counted:
            raise RequestFailedError("INCOMPLETE", "the stream ended without a token")


def _count(tokens: object) -> int:
    """What a server says that it counted. Raises ValueError for what cannot be that."""
    if not isinstance(tokens, int) or tokens < 0:
        raise ValueError(f"usage of {tokens!r} tokens")
    return tokens


def _why(answer: LineStream) -> str:
    return f"{answer.status} {answer.error[:300].decode('utf-8', 'replace')}"


def _tls(config: LoadConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=config.tls_ca)
        if config.tls_cert is not None:
            context.load_cert_chain(config.tls_cert, config.tls_key)
    except OSError as error:
        raise ValueError(f"--tls-ca, --tls-cert, --tls-key: {error}") from error
    return context
