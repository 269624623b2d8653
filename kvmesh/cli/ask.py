"""One request to a router, streamed, and what it says of itself."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from kvmesh.client import Client
from kvmesh.errors import Code, RequestError


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished request. Times are seconds, seen from the client."""

    text: str
    node: str
    reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    ttft: float
    seconds: float
    finish_reason: str

    @property
    def tokens_per_second(self) -> float | None:
        """Decode speed: tokens after the first, by the time after the first."""
        if self.completion_tokens < 2 or self.seconds <= self.ttft:
            return None
        return (self.completion_tokens - 1) / (self.seconds - self.ttft)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "tokens_per_second": self.tokens_per_second}


def ask(
    client: Client,
    prompt: str | None = None,
    *,
    on_text: Callable[[str], None] = lambda _: None,
    **fields: Any,
) -> Answer:
    """Sends a request, hands on text as it comes, and returns the whole.

    Prompt and fields are those of `Client.generate`. Raises RequestError.
    """
    started = time.perf_counter()
    generation = client.generate(prompt, **fields)
    for event in generation:
        on_text(event.text)
    seconds = time.perf_counter() - started
    done = generation.result()
    cached = done.usage.cached
    return Answer(
        text=done.text,
        node=done.summary.node,
        reason=done.route.reason,
        prompt_tokens=done.usage.prompt_tokens,
        completion_tokens=done.usage.completion_tokens,
        cached_tokens=cached.gpu + cached.cpu + cached.remote,
        ttft=seconds if done.ttft is None else done.ttft,
        seconds=seconds,
        finish_reason=done.finish_reason or "",
    )


def explain(error: RequestError, target: str) -> str:
    """A failed request in words for the person who sent it to `target`."""
    if error.code is Code.UNAVAILABLE and "connect" in error.message:
        return f"no router answers at {target}; `kvmesh serve` starts one"
    if error.retry_after is not None:
        return f"{error.message}; try again in {error.retry_after:g} s"
    return f"{error.message} ({error.code.name})"
