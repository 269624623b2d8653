"""A real tokenizer small enough to read: each byte is a token, plus two markers of chat turns."""

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from kvmesh.v1 import cache_node_pb2 as pb

START, END = 256, 257
VOCAB_SIZE = 258
BLOCK_SIZE = 16
MAX_MODEL_LEN = 4096
MODEL = "tiny"

CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role not in ('system', 'user', 'assistant', 'tool') %}"
    "{{ raise_exception('unknown role ' + m.role) }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% if m.tool_calls %}"
    "{{ m.tool_calls | map(attribute='function.arguments') | list }}{% endif %}"
    "{% endfor %}"
    "{% if mood %}[{{ mood }}][{{ documents[0].title }}][{{ reasoning_effort }}]{% endif %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _alphabet() -> dict[str, int]:
    """GPT-2's stand-in character of each byte, numbered by the byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable}
    characters |= {byte: chr(256 + place) for place, byte in enumerate(others)}
    return {character: byte for byte, character in characters.items()}


def tokenizer_files() -> dict[str, bytes]:
    tokenizer = Tokenizer(models.BPE(vocab=_alphabet(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)]
    )
    return {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps({"eos_token": "<|im_end|>"}).encode(),
        "chat_template.jinja": CHAT_TEMPLATE.encode(),
    }


def node_info(name: str, epoch: int, num_blocks: int = 512, **changes: object) -> pb.NodeInfo:
    """What a node of the tiny model says of itself; `changes` may be of its key scheme too."""
    info = pb.NodeInfo(
        name=name,
        epoch=epoch,
        model=MODEL,
        model_fingerprint=b"tiny-fingerprint",
        key_scheme=pb.KeyScheme(
            version=1, block_size=BLOCK_SIZE, kv_cache_dtype="auto", layout="test"
        ),
        max_model_len=MAX_MODEL_LEN,
        num_blocks=num_blocks,
        max_num_seqs=64,
        max_num_batched_tokens=2048,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=[END],
        dtype="float32",
        device="cpu",
    )
    for field, value in changes.items():
        owner = info.key_scheme if field in info.key_scheme.DESCRIPTOR.fields_by_name else info
        setattr(owner, field, value)
    return info
