"""Renders chat messages with a model's own template, in jinja2's sandbox."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class ChatTemplate:
    """A template that came with a model: code by strangers, so it sees plain data and no attribute
    of Python.

    What it may call is what transformers offers: `raise_exception`, `strftime_now`, a `tojson` that
    leaves HTML alone, loop controls, and {% generation %} blocks, which render as what they
    enclose.
    """

    def __init__(self, source: str) -> None:
        """Raises ValueError when the template does not parse."""
        try:
            self._template = _compile(source)
        except TemplateError as error:
            raise ValueError(f"the model's chat template does not parse: {error}") from error

    def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """A message's fields that are None are left out, since templates test for presence.

        Raises ValueError with the template's own message when it refuses the conversation or fails
        on it.
        """
        present = [{k: v for k, v in message.items() if v is not None} for message in messages]
        try:
            return self._template.render(messages=present, **variables)
        except TemplateError as error:
            raise ValueError(f"the chat template refused the messages: {error.message}") from error
        except Exception as error:  # whatever the template's own expressions raise
            raise ValueError(f"the chat template cannot render the messages: {error}") from error


def _compile(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(source)


class _GenerationBlock(Extension):
    """{% generation %} marks an assistant's words for training; for serving it is transparent."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)  # noqa: DTZ005  local time, as transformers
