"""Text to token ids and back, from the files of a model. Loads neither torch nor transformers."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import tokenizers

from kvmesh.chat_template import ChatTemplate

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)

_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")


class Tokenizer:
    """Means the same for ever, and is safe to use from several threads.

    Built from the files' contents by name, since a router receives them from a node. Only
    tokenizer.json is required.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        """Raises ValueError when tokenizer.json is missing, or a file is malformed."""
        if "tokenizer.json" not in files:
            raise ValueError(
                "tokenizer.json is missing: the model has no tokenizer that can be used"
            )
        self._tokenizer = _read_tokenizer(files["tokenizer.json"])
        config = _read_json(files, "tokenizer_config.json")
        self._special = {
            name: _content(config.get(name)) for name in config if name.endswith("_token")
        }
        self._template = _read_template(files, config)
        self._generation = _read_json(files, "generation_config.json")
        self._bytes: dict[int, bytes] = {}  # of tokens that were asked for
        self.byte_level = _decodes_bytes(files["tokenizer.json"])
        self.special_ids = frozenset(
            index
            for index, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special
        )

    @classmethod
    def from_directory(cls, directory: Path) -> "Tokenizer":
        return cls(read_tokenizer_files(directory))

    @property
    def vocab_size(self) -> int:
        """Of the tokenizer, added tokens included. A model's may be larger, padded."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def bos_token_id(self) -> int | None:
        return self._id_of("bos_token")

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """All ids that end a generation: generation_config.json's, else tokenizer_config.json's
        eos_token.
        """
        ids = self._generation.get("eos_token_id")
        if ids is None:
            ids = self._id_of("eos_token")
        if ids is None:
            return ()
        return tuple(ids) if isinstance(ids, list) else (int(ids),)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Pass add_special_tokens=False for rendered chat templates, which contain theirs.

        Other threads run meanwhile: the library holds the interpreter's lock for a single text, not
        for a batch.
        """
        (encoding,) = self._tokenizer.encode_batch_fast(
            [text], add_special_tokens=add_special_tokens
        )
        return encoding.ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text; empty for an id that is not in the vocabulary.

        Remembered: beside a model, whose weights leave nothing in the caches, making them anew for
        32 tokens took 5 of the 7 ms that a step spends around the model.
        """
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._make_bytes(token_id)
        return found

    def _make_bytes(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if not self.byte_level:
            return self._added_bytes(token, token_id)
        try:
            return bytes(_byte_of_character()[character] for character in token)
        except (
            KeyError
        ):  # an added token with a character that is no byte's stand-in, such as a space
            return token.encode("utf-8")

    def _added_bytes(self, token: str, token_id: int) -> bytes:
        """Of a vocabulary of pieces. The second of two equal tokens is looked at: decoders strip
        the space before the first.
        """
        if byte := _BYTE_TOKEN.fullmatch(token):
            return bytes.fromhex(byte[1])
        once = self.decode([token_id], skip_special_tokens=False)
        return self.decode([token_id] * 2, skip_special_tokens=False)[len(once) :].encode("utf-8")

    def token_name(self, token_id: int) -> str:
        """As the vocabulary spells it, such as "Ġhello"; empty for an id that is not in it."""
        return self._tokenizer.id_to_token(token_id) or ""

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The text that the model sees for `messages`; encode it with add_special_tokens=False.

        Raises ValueError when the model has no template, or the template refuses the messages.
        """
        if self._template is None:
            raise ValueError(
                "the model has no chat template: send a plain prompt instead of messages"
            )
        given = {"add_generation_prompt": add_generation_prompt, "tools": tools, "documents": None}
        return self._template.render(messages, {**self._special, **given, **variables})

    def _id_of(self, name: str) -> int | None:
        token = self._special.get(name)
        return None if token is None else self._tokenizer.token_to_id(token)


def read_tokenizer_files(directory: Path) -> dict[str, bytes]:
    """The contents of those of TOKENIZER_FILES that `directory` has."""
    paths = [directory / name for name in TOKENIZER_FILES]
    return {path.name: path.read_bytes() for path in paths if path.is_file()}


def _read_tokenizer(content: bytes) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"tokenizer.json is malformed: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_json(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    try:
        content = json.loads(files.get(name, b"{}"))
    except ValueError as error:
        raise ValueError(f"{name} is malformed: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{name} is malformed: expected an object")
    return content


def _read_template(files: Mapping[str, bytes], config: Mapping[str, Any]) -> ChatTemplate | None:
    """chat_template.jinja, else the one in tokenizer_config.json, which may be a list of named
    ones.
    """
    if "chat_template.jinja" in files:
        return ChatTemplate(files["chat_template.jinja"].decode("utf-8"))
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return None if template is None else ChatTemplate(template)


def _content(token: Any) -> str | None:
    """A special token is spelled as a string, or as an object with its flags."""
    return token.get("content") if isinstance(token, dict) else token


def _decodes_bytes(content: bytes) -> bool:
    decoder = json.loads(content).get("decoder") or {}
    return bool(decoder.get("type") == "ByteLevel")


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """GPT-2's stand-ins: printable bytes of Latin-1 stand for themselves, the other 68 for U+0100
    and up.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }
