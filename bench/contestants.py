"""What is measured beside each other: anything that completes prompts, over HTTP or not."""

import time
from collections.abc import Sequence
from typing import Protocol

from bench.in_process import InProcessEngine
from bench.openai_client import Answer, Message, OpenAiClient
from bench.timing import Timing
from bench.usage import cpu_seconds, resident_bytes


class Contestant(Protocol):
    """Runs the same model as the others. A method gives None where there is nothing to give."""

    name: str

    def complete(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Timing]:
        """All prompts at once, each to exactly `max_tokens` tokens of output."""

    def chat(self, messages: Sequence[Message], max_tokens: int) -> Answer | None:
        """One turn; safe to call from several threads."""

    def memory(self) -> int | None:
        """Resident bytes of all its processes."""

    def cpu(self) -> float | None:
        """Seconds of CPU time that all its processes have used."""


class Served:
    """A server that speaks OpenAI's API."""

    def __init__(
        self, name: str, client: OpenAiClient, pids: Sequence[int], *, chats: bool = True
    ) -> None:
        self.name = name
        self._client = client
        self._pids = pids
        self._chats = chats

    def complete(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Timing]:
        return self._client.complete(prompts, max_tokens)

    def chat(self, messages: Sequence[Message], max_tokens: int) -> Answer | None:
        return self._client.chat(messages, max_tokens) if self._chats else None

    def memory(self) -> int | None:
        return sum(map(resident_bytes, self._pids)) or None

    def cpu(self) -> float | None:
        return sum(map(cpu_seconds, self._pids)) or None


class Alone:
    """Our engine in this process: what it does without router, network and HTTP."""

    name = "engine alone"

    def __init__(self, engine: InProcessEngine) -> None:
        self._engine = engine

    def complete(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Timing]:
        return self._engine.complete(prompts, max_tokens)

    def chat(self, _messages: Sequence[Message], _max_tokens: int) -> Answer | None:
        return None

    def memory(self) -> int | None:
        return None

    def cpu(self) -> float | None:
        return time.process_time()  # nothing else runs in this process meanwhile
