"""OpenAI's streaming API: what every measured server is asked for, and what its events say."""

import json
from typing import Any, NamedTuple

# Every token should have a text, so that its time is seen.
SETTINGS: dict[str, Any] = {
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
    "skip_special_tokens": False,
    "stream_options": {"include_usage": True},
}
"""Greedy, ignoring the end of the text."""


class StreamEvent(NamedTuple):
    text: str  # empty where the event brings none
    usage: dict[str, Any] | None
    error: str | None

    @property
    def cached_tokens(self) -> int:
        details = (self.usage or {}).get("prompt_tokens_details") or {}
        return details.get("cached_tokens") or 0


def read_event(line: bytes) -> StreamEvent | None:
    """None for a line that holds no event, and for the mark of the end. Raises ValueError."""
    if not line.startswith(b"data:") or (data := line[5:].strip()) == b"[DONE]":
        return None
    event = json.loads(data)
    if error := event.get("error"):
        return StreamEvent("", None, str(error))
    text = "".join(map(_text, event.get("choices") or ()))
    return StreamEvent(text, event.get("usage"), None)


def _text(choice: dict[str, Any]) -> str:
    return choice.get("text") or (choice.get("delta") or {}).get("content") or ""
