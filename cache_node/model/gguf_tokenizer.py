"""Rebuilds the files of a byte-level BPE tokenizer from a GGUF file's metadata."""

from typing import Any, Protocol

from cache_node.model.config_fields import UnsupportedModelError

CONTROL, USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "smollm": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL],
    "gpt-2": [BYTE_LEVEL],
    "llama-bpe": [
        {
            "type": "Split",
            "pattern": {"Regex": LLAMA3_PATTERN},
            "behavior": "Isolated",
            "invert": False,
        },
        {**BYTE_LEVEL, "use_regex": False},
    ],
}
"""How text is split before merging, by tokenizer.ggml.pre."""


class Metadata(Protocol):
    def get(self, key: str, default: Any = None) -> Any: ...
    def required(self, key: str) -> Any: ...


def tokenizer_json(metadata: Metadata) -> dict[str, Any]:
    """The content of tokenizer.json. Raises UnsupportedModelError for another kind of tokenizer."""
    _refuse_other_kinds(metadata)
    tokens = metadata.required("tokenizer.ggml.tokens")
    merges = metadata.required("tokenizer.ggml.merges")
    pre = metadata.required("tokenizer.ggml.pre")
    return {
        "version": "1.0",
        "added_tokens": _added_tokens(tokens, metadata.required("tokenizer.ggml.token_type")),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[pre]},
        "post_processor": _bos_template(metadata, tokens),
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "ignore_merges": pre == "llama-bpe",
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in merges],
        },
    }


def tokenizer_config(metadata: Metadata) -> dict[str, Any]:
    """`PreTrainedTokenizerFast` makes transformers use tokenizer.json as it is."""
    tokens = metadata.required("tokenizer.ggml.tokens")
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": int(metadata.required("llama.context_length")),
        "clean_up_tokenization_spaces": False,
        **{name: tokens[index] for name, index in ids.items() if index is not None},
    }


def _refuse_other_kinds(metadata: Metadata) -> None:
    kind, pre = metadata.required("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in PRE_TOKENIZERS:
        raise UnsupportedModelError(
            f"GGUF tokenizer {kind!r} with pre-tokenizer {pre!r} is not supported; supported: gpt2 "
            f"with {', '.join(PRE_TOKENIZERS)}. Use a directory with a tokenizer.json instead"
        )


def _added_tokens(tokens: list[str], types: list[int]) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": index, "content": token, "special": kind == CONTROL, **flags}
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (CONTROL, USER_DEFINED)
    ]


def _bos_template(metadata: Metadata, tokens: list[str]) -> dict[str, Any] | None:
    if not metadata.get("tokenizer.ggml.add_bos_token", False):
        return None
    index = int(metadata.required("tokenizer.ggml.bos_token_id"))
    bos, text = (
        {"SpecialToken": {"id": tokens[index], "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    )
    return {
        "type": "TemplateProcessing",
        "single": [bos, text],
        "pair": [bos, text, bos, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            tokens[index]: {"id": tokens[index], "ids": [index], "tokens": [tokens[index]]}
        },
    }
