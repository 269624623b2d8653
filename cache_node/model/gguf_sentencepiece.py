"""Rebuilds a SentencePiece BPE tokenizer (Gemma's kind) from a GGUF file's metadata.

SentencePiece (Kudo and Richardson, arXiv:1808.06226) merges the pair of pieces whose union has the
best score; `tokenizers` merges the pair that is first in a list. So the list is every way to cut a
piece in two pieces, best score first.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from cache_node.model.config_fields import UnsupportedModelError
from cache_node.model.gguf_metadata import GgufMetadata

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # values of tokenizer.ggml.token_type
SPACE = "▁"


def sentencepiece_model(metadata: GgufMetadata) -> dict[str, Any]:
    """The parts of tokenizer.json other than post_processor. Text becomes pieces as in
    SentencePiece: user-defined pieces first, the longest at each place, and they merge with
    nothing.
    """
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        raise UnsupportedModelError(
            "tokenizer.ggml.add_space_prefix is not supported with tokenizer 'llama'; use a "
            "directory with a tokenizer.json instead"
        )
    types = metadata.required("tokenizer.ggml.token_type")
    scores = metadata.required("tokenizer.ggml.scores")
    pieces = _pieces(metadata.required("tokenizer.ggml.tokens"), types)
    return {
        "added_tokens": [*_added_tokens(pieces, types)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": pieces[int(metadata.required("tokenizer.ggml.unknown_token_id"))],
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {piece: index for index, piece in enumerate(pieces)},
            "merges": _merges(pieces, types, scores),
        },
    }


def _pieces(tokens: Sequence[str], types: Sequence[int]) -> list[str]:
    """With SPACE for spaces everywhere: GGUF spells user-defined pieces as in the text."""
    return [
        token.replace(" ", SPACE) if kind == USER_DEFINED else token
        for token, kind in zip(tokens, types, strict=True)
    ]


def _added_tokens(pieces: Sequence[str], types: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Those with a SPACE are looked for in the normalised text, the others in the text as it is."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    for index, (piece, kind) in enumerate(zip(pieces, types, strict=True)):
        if kind in (CONTROL, USER_DEFINED):
            special, normalized = kind == CONTROL, SPACE in piece
            yield {
                "id": index,
                "content": piece,
                "special": special,
                "normalized": normalized,
                **flags,
            }


def _merges(
    pieces: Sequence[str], types: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Of equal score, the pair whose left piece has the lower id first."""
    ids = {piece: index for index, piece in enumerate(pieces) if types[index] == NORMAL}
    found = [
        (-scores[index], ids[piece[:cut]], ids[piece[cut:]])
        for piece, index in ids.items()
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    ]
    return [(pieces[left], pieces[right]) for _, left, right in sorted(found)]
