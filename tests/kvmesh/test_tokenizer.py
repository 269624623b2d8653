"""The tokenizer gives the ids and the templates of transformers, from the files' contents alone."""

import json
import subprocess
import sys
from datetime import datetime

import pytest
from transformers import AutoTokenizer

from kvmesh.tokenizer import TOKENIZER_FILES, Tokenizer, read_tokenizer_files

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two  spaces\n\n\ttab",
    "1234567890 and 3.14",
    "naïve café — 東京 🎭👩‍👩‍👧",
    "<|im_start|>user\nhi<|im_end|>",
    "def f(x):\n    return x**2  # ünïcode",
    "don't won't it's",
]
CHATS = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <b>"}],
    [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "3"},
    ],
]
VOCAB = {"a": 0, "b": 1, "Ġ": 2, "<s>": 3, "</s>": 4}


def files(template: str | None = None, **config) -> dict[str, bytes]:
    added = [
        {"id": VOCAB[token], "content": token, "special": True, "single_word": False}
        | {"lstrip": False, "rstrip": False, "normalized": False}
        for token in ("<s>", "</s>")
    ]
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "model": {"type": "BPE", "vocab": VOCAB, "merges": []},
        "truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0}
        | {"direction": "Right"},
    }
    content = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, **config}
    if template is not None:
        content["chat_template"] = template
    return {
        "tokenizer.json": json.dumps(tokenizer).encode(),
        "tokenizer_config.json": json.dumps(content).encode(),
    }


def render(template: str, *messages, **variables) -> str:
    return Tokenizer(files(template)).apply_chat_template(messages, **variables)


@pytest.fixture(scope="module")
def ours(smollm2):
    return Tokenizer.from_directory(smollm2)


@pytest.fixture(scope="module")
def theirs(smollm2):
    return AutoTokenizer.from_pretrained(smollm2)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_texts_are_those_of_transformers(ours, theirs, text):
    for special in (True, False):
        ids = ours.encode(text, add_special_tokens=special)
        assert ids == theirs(text, add_special_tokens=special).input_ids
        assert ours.decode(ids, special) == theirs.decode(ids, skip_special_tokens=special)


@pytest.mark.parametrize("chat", CHATS)
def test_r11_chats_are_those_of_transformers(ours, theirs, chat):
    for prompt in (True, False):
        text = ours.apply_chat_template(chat, add_generation_prompt=prompt)
        expected = theirs.apply_chat_template(chat, add_generation_prompt=prompt, tokenize=False)
        assert text == expected
        ids = theirs.apply_chat_template(chat, add_generation_prompt=prompt, return_dict=False)
        assert ours.encode(text, add_special_tokens=False) == ids


def test_special_tokens_of_the_default_model(ours, theirs):
    assert ours.vocab_size == len(theirs)
    assert ours.eos_token_ids == (theirs.eos_token_id,)
    assert ours.bos_token_id == theirs.bos_token_id
    assert ours.special_ids == set(theirs.all_special_ids) | set(range(17))


def test_a_directory_and_its_files_are_the_same(smollm2, ours):
    contents = read_tokenizer_files(smollm2)
    assert set(contents) == set(TOKENIZER_FILES)
    assert Tokenizer(contents).encode("same", False) == ours.encode("same", False)


def test_loads_neither_torch_nor_transformers():
    """The router's process uses it."""
    code = "import sys, kvmesh.detokenizer; print({'torch', 'transformers'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


def test_no_text_is_truncated():
    assert len(Tokenizer(files()).encode("aababba", add_special_tokens=False)) == 7


def test_end_tokens_come_from_the_generation_config_first():
    assert Tokenizer(files()).eos_token_ids == (4,)
    several = {**files(), "generation_config.json": b'{"eos_token_id": [3, 4]}'}
    assert Tokenizer(several).eos_token_ids == (3, 4)
    assert Tokenizer(files(eos_token=None)).eos_token_ids == ()


def test_template_sees_special_tokens_tools_and_variables():
    template = "{{ bos_token }}{{ eos_token }}{{ tools | tojson }}{{ mood }}"
    text = render(template, tools=[{"n": "<é>"}], mood="calm")
    assert text == '<s></s>[{"n": "<é>"}]calm'


def test_template_blocks_are_trimmed_and_loops_can_end():
    template = """
    {% for m in messages %}
        {% if m.role == 'stop' %}{% break %}{% endif %}
{% generation %}{{ m.role }}{% endgeneration %}
    {% endfor %}
done"""
    assert render(template, {"role": "a"}, {"role": "stop"}, {"role": "b"}) == "\nadone"


def test_template_tells_the_time():
    assert render("{{ strftime_now('%Y') }}") == f"{datetime.now():%Y}"  # noqa: DTZ005


def test_a_field_that_is_none_is_absent():
    message = {"content": "x", "tool_calls": None}
    assert render("{{ 'tool_calls' in messages[0] }}", message) == "False"


def test_chat_template_file_wins_over_the_config():
    contents = {**files("old"), "chat_template.jinja": b"new"}
    assert Tokenizer(contents).apply_chat_template([]) == "new"


def test_named_templates():
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert Tokenizer(files(chat_template=named)).apply_chat_template([]) == "d"


@pytest.mark.parametrize(
    ("template", "word"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "cannot render"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% for %}", "does not parse"),
        (None, "no chat template"),
    ],
)
def test_template_errors_are_value_errors(template, word):
    with pytest.raises(ValueError, match=word):
        render(template, {"role": "user", "content": "x"})


@pytest.mark.parametrize(
    ("contents", "word"),
    [
        ({}, r"tokenizer\.json is missing"),
        ({"tokenizer.json": b"{"}, r"tokenizer\.json is malformed"),
        ({**files(), "tokenizer_config.json": b"{"}, r"tokenizer_config\.json is malformed"),
        ({**files(), "generation_config.json": b"[]"}, r"generation_config\.json is malformed"),
    ],
)
def test_malformed_files_are_named(contents, word):
    with pytest.raises(ValueError, match=word):
        Tokenizer(contents)
