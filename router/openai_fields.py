"""Types of fields in OpenAI's requests: strict, and bounded before their entries are looked at."""

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from kvmesh.validation import (
    MAX_BIASES,
    MAX_MESSAGES,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKENS,
    PRIORITIES,
)

UINT32 = 2**32 - 1
MAX_PROMPTS = 128
MAX_TOOLS = 1024
MAX_PARTS = 1024
"""Content parts of a message."""


def at_most(count: int, what: str) -> BeforeValidator:
    """A body of a few MB has a million elements: to look at them all takes seconds."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > count:
            raise ValueError(f"must have at most {count} {what}, has {len(value)}")
        return value

    return BeforeValidator(check)


def _few_prompts(value: Any) -> Any:
    """A list of token ids is one prompt, however long."""
    several = isinstance(value, list) and bool(value) and isinstance(value[0], str | list | dict)
    if several and len(value) > MAX_PROMPTS:
        raise ValueError(
            f"must have at most {MAX_PROMPTS} prompts, has {len(value)}: send several requests"
        )
    return value


def _unicode(text: str) -> str:
    """JSON can smuggle in half a surrogate pair, which is no text and no protobuf string."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"must be valid Unicode, is not at character {error.start}") from None
    return text


Count = Annotated[int, Field(ge=0, le=UINT32)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[str, AfterValidator(_unicode)]
TokenId = Annotated[int, Field(ge=0, le=UINT32)]
Priority = Annotated[int, Field(ge=PRIORITIES[0], le=PRIORITIES[-1])]

# One wrong element is named: to describe a million of them takes a minute, and two gigabytes.
Texts = Annotated[list[Text], Field(fail_fast=True)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]

Prompts = Annotated[
    Text | Texts | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)],
    BeforeValidator(_few_prompts),
]
Stops = Annotated[Text | Texts, at_most(MAX_STOP_STRINGS, "strings")]
StopTokenIds = Annotated[TokenIds, at_most(MAX_STOP_TOKENS, "ids")]
Biases = Annotated[dict[str, Number], at_most(MAX_BIASES, "entries")]
Tools = Annotated[Objects, at_most(MAX_TOOLS, "tools")]
few_messages = at_most(MAX_MESSAGES, "messages")


def as_json(value: Any) -> str:
    """JSON for a field of ours, "" for what is empty."""
    return json.dumps(value) if value else ""
