"""Requests that belong together."""

from typing import NamedTuple

from bench.load.prompt import Prompt


class Step(NamedTuple):
    """A request of a session. `after` is the place of the step that it waits for."""

    prompt: Prompt
    output: int  # tokens
    after: int | None = None
    pause: float = 0.0  # seconds between the end of that one and this


Session = tuple[Step, ...]
