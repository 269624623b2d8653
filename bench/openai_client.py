"""The one HTTP client that measures every server: OpenAI's streaming API, a thread a request."""

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPResponse
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from bench.openai_stream import SETTINGS, StreamEvent, read_event
from bench.timing import Timing

TIMEOUT = 600.0  # seconds without a byte
Message = dict[str, str]


class Answer(NamedTuple):
    text: str
    timing: Timing


class OpenAiClient:
    """Talks to the server at `url`, without keeping connections. Greedy, ignoring end of text."""

    def __init__(self, url: str, model: str) -> None:
        """`url` has no /v1."""
        self._address = urlsplit(url)
        self._model = model

    def complete(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Timing]:
        """All prompts at once, each to exactly `max_tokens` tokens of output."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            bodies = [{"prompt": list(p), "max_tokens": max_tokens} for p in prompts]
            return [a.timing for a in pool.map(self._completion, bodies)]

    def chat(self, messages: Sequence[Message], max_tokens: int) -> Answer:
        body = {"messages": list(messages), "max_tokens": max_tokens}
        return self._ask("/v1/chat/completions", body)

    def ready(self) -> bool:
        """Whether the server answers and lists the model."""
        connection = self._connect()
        try:
            connection.request("GET", "/v1/models")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def _completion(self, body: dict[str, Any]) -> Answer:
        return self._ask("/v1/completions", body)

    def _ask(self, path: str, body: dict[str, Any]) -> Answer:
        wanted = {"model": self._model} | body | SETTINGS
        connection = self._connect()
        started = time.perf_counter()
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(wanted), headers)
            response = connection.getresponse()
            if response.status != 200:
                raise RuntimeError(f"{self._address.netloc}: {response.read()[:500]!r}")
            return _read(response, started)
        finally:
            connection.close()

    def _connect(self) -> HTTPConnection:
        return HTTPConnection(self._address.hostname or "", self._address.port, timeout=TIMEOUT)


def _read(response: HTTPResponse, started: float) -> Answer:
    texts: list[str] = []
    times: list[float] = []
    last: StreamEvent | None = None  # with usage
    for event in filter(None, map(read_event, response)):
        if event.error is not None:
            raise RuntimeError(f"the stream broke: {event.error}")
        last = event if event.usage else last
        if event.text:
            times.append(time.perf_counter())
            texts.append(event.text)
    if not times or last is None or last.usage is None:
        raise RuntimeError("the stream ended early")
    tokens = last.usage["completion_tokens"]
    timing = Timing(started, times[0], times[-1], tokens, last.cached_tokens)
    return Answer("".join(texts), timing)
