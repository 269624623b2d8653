"""In float32 the default model writes what transformers writes, token by token.

The reference is greedy decoding by full forward passes: given the tokens that we chose, each must
be the most probable one after those before it. A choice within NEAR_TIE of the best logit is
excused, since two ways to sum the same numbers may rank it either way, and reported.
"""

from pathlib import Path

import pytest
import torch

from kvmesh.tokenizer import Tokenizer
from tests.model_driver import Driver, make_executor, reference_model

NEAR_TIE = 1e-4
NEW_TOKENS = 24
BLOCK = 16

QUESTIONS = [
    "What is the capital of France?",
    "Explain why the sky is blue in one sentence.",
    "Write a haiku about the sea.",
    "List three prime numbers.",
    "¿Cómo se dice 'good morning' en español?",
    "Translate to French: the cat sleeps.",
    "What is 17 + 25?",
    "Write a Python function that reverses a list.",
    "Who wrote Hamlet? 🎭",
]
TEXTS = [
    "Once upon a time",
    "The",
    "def fibonacci(n):\n    ",
    "SELECT name FROM users WHERE",
    '{"name": "Ada", "born": ',
    "1, 1, 2, 3, 5, 8,",
    "In the beginning the Universe was created. This has made a lot of people",
]
REPEATED = "The quick brown fox jumps over the lazy dog. "


@pytest.fixture(scope="module")
def prompts(smollm2: Path) -> list[list[int]]:
    """20 prompts: chats, plain texts, one of 1,000 tokens, and whole numbers of blocks."""
    tokenizer = Tokenizer.from_directory(smollm2)
    chats = [tokenizer.apply_chat_template([{"role": "user", "content": q}]) for q in QUESTIONS]
    encoded = [tokenizer.encode(text, add_special_tokens=False) for text in chats + TEXTS]
    filler = tokenizer.encode(REPEATED * 120, add_special_tokens=False)
    return [
        *encoded,
        filler[:1000],
        filler[: 4 * BLOCK],
        filler[: 2 * BLOCK],
        filler[3 : BLOCK + 3],
    ]


@pytest.fixture(scope="module")
def driver(smollm2: Path) -> Driver:
    return Driver(make_executor(smollm2, block_size=BLOCK, num_blocks=1024))


@pytest.fixture(scope="module")
def reference(smollm2: Path):
    return reference_model(smollm2, torch.float32)


@pytest.fixture(scope="module")
def outputs(driver: Driver, prompts: list[list[int]]) -> list[list[int]]:
    """All prompts in one batch, each prefilled whole."""
    return driver.generate(prompts, NEW_TOKENS)


def test_every_token_is_the_one_that_transformers_chooses(reference, prompts, outputs):
    gaps = [_first_gap(reference, *pair) for pair in zip(prompts, outputs, strict=True)]
    wrong = {i: gap for i, gap in enumerate(gaps) if gap > 0.0}
    print(f"near-ties excused: {wrong}")
    assert all(gap < NEAR_TIE for gap in wrong.values()), wrong


def test_generate_of_transformers_agrees(reference, prompts, outputs):
    for i in (0, 11):
        generated = reference.generate(
            torch.tensor([prompts[i]]),
            attention_mask=torch.ones(1, len(prompts[i]), dtype=torch.int64),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert generated[0, len(prompts[i]) :].tolist() == outputs[i]


def test_chunked_prefill_changes_no_token(driver, reference, prompts, outputs):
    """Decode rows and prefill rows share steps, and chunks end inside blocks."""
    chunked = driver.generate(prompts, 12, chunk=50)
    _assert_same(reference, prompts, [output[:12] for output in outputs], chunked)


def test_alone_or_in_a_batch_changes_no_token(driver, reference, prompts, outputs):
    chosen = (0, 4, 10, 17)
    alone = [driver.generate([prompts[i]], 8)[0] for i in chosen]
    batched = [outputs[i][:8] for i in chosen]
    _assert_same(reference, [prompts[i] for i in chosen], batched, alone)


def _assert_same(reference, prompts, expected, found) -> None:
    for prompt, one, other in zip(prompts, expected, found, strict=True):
        assert one == other or _first_gap(reference, prompt, other) < NEAR_TIE


@torch.inference_mode()
def _first_gap(reference, prompt: list[int], output: list[int]) -> float:
    """By how much the first token that is not the reference's choice misses the best logit; 0.0 if
    there is none."""
    logits = reference(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
    best = logits.amax(dim=-1)
    chosen = logits.gather(1, torch.tensor(output)[:, None]).squeeze(1)
    gaps = (best - chosen).tolist()
    return next((gap for gap in gaps if gap > 0.0), 0.0)
