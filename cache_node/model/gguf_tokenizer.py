"""Rebuilds the files of a tokenizer from a GGUF file's metadata."""

from typing import Any

from cache_node.model.config_fields import UnsupportedModelError
from cache_node.model.gguf_metadata import GgufMetadata
from cache_node.model.gguf_sentencepiece import sentencepiece_model

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


def tokenizer_json(metadata: GgufMetadata) -> dict[str, Any]:
    """The content of tokenizer.json. Raises UnsupportedModelError for another kind of tokenizer."""
    kind, pre = metadata.required("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind == "llama":
        model = sentencepiece_model(metadata)
    elif kind == "gpt2" and pre in PRE_TOKENIZERS:
        model = _byte_level_model(metadata, pre)
    else:
        raise UnsupportedModelError(
            f"GGUF tokenizer {kind!r} with pre-tokenizer {pre!r} is not supported; supported: "
            f"llama, and gpt2 with {', '.join(PRE_TOKENIZERS)}. Use a directory with a "
            "tokenizer.json instead"
        )
    tokens = metadata.required("tokenizer.ggml.tokens")
    return {"version": "1.0", "post_processor": _bos_template(metadata, tokens), **model}


def tokenizer_config(metadata: GgufMetadata) -> dict[str, Any]:
    """`PreTrainedTokenizerFast` makes transformers use tokenizer.json as it is."""
    tokens = metadata.required("tokenizer.ggml.tokens")
    special = metadata.special_ids().items()
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": int(metadata.model_required("context_length")),
        "clean_up_tokenization_spaces": False,
        **{name.removesuffix("_id"): tokens[index] for name, index in special},
    }


def _byte_level_model(metadata: GgufMetadata, pre: str) -> dict[str, Any]:
    tokens = metadata.required("tokenizer.ggml.tokens")
    merges = metadata.required("tokenizer.ggml.merges")
    return {
        "added_tokens": _added_tokens(tokens, metadata.required("tokenizer.ggml.token_type")),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[pre]},
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "ignore_merges": pre == "llama-bpe",
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in merges],
        },
    }


def _added_tokens(tokens: list[str], types: list[int]) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": index, "content": token, "special": kind == CONTROL, **flags}
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (CONTROL, USER_DEFINED)
    ]


def _bos_template(metadata: GgufMetadata, tokens: list[str]) -> dict[str, Any] | None:
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
