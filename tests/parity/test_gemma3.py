"""Gemma 3 270M, a real model with local and global layers, against transformers in float32.

As in test_parity_transformers.py, a token must be the one that transformers finds most probable
after those before it, near-ties apart. The model is a download of 240 MB, once; without it:
`make test ARGS='-m "not large"'`.
"""

from pathlib import Path

import pytest
import torch

from cache_node.model.source import find_model
from cache_node.sampling import SampleSpec
from cache_node.step_plan import Row, StepPlan
from kvmesh.tokenizer import Tokenizer
from tests.model_driver import GREEDY, Driver, make_executor, reference_model

pytestmark = [pytest.mark.large, pytest.mark.timeout(600)]

NEAR_TIE = 1e-3  # of logits up to 40
NEW_TOKENS = 16
WINDOW = 512  # of the local layers
TEXTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time",
    "日本の首都は",
    "1, 1, 2, 3, 5, 8,",
]
STORY = "In the year {} a ship of {} sailors left the harbour and came back with {} barrels. "


@pytest.fixture(scope="module")
def gemma3() -> Path:
    return find_model("gemma-3-270m", None, lambda stage, fraction: None)


@pytest.fixture(scope="module")
def tokenizer(gemma3: Path) -> Tokenizer:
    return Tokenizer.from_directory(gemma3)


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """Short texts, and one that the local layers do not see the beginning of."""
    story = "".join(STORY.format(1700 + i, 7 * i % 50 + 3, i * i % 90) for i in range(60))
    long = tokenizer.encode(story, True)[: WINDOW + 180]
    assert len(long) == WINDOW + 180
    return [*(tokenizer.encode(text, True) for text in TEXTS), long]


@pytest.fixture(scope="module")
def driver(gemma3: Path) -> Driver:
    return Driver(make_executor(gemma3, num_blocks=256))


@pytest.fixture(scope="module")
def reference(gemma3: Path):
    return reference_model(gemma3, torch.float32)


@pytest.fixture(scope="module")
def outputs(driver: Driver, prompts: list[list[int]]) -> list[list[int]]:
    return driver.generate(prompts, NEW_TOKENS)


def test_every_token_is_the_one_that_transformers_chooses(reference, prompts, outputs):
    for prompt, output in zip(prompts, outputs, strict=True):
        assert _gap(reference, prompt, output) < NEAR_TIE


def test_chunked_prefill_in_a_ragged_batch_does_too(driver, reference, prompts):
    for prompt, output in zip(prompts, driver.generate(prompts, 6, chunk=100), strict=True):
        assert _gap(reference, prompt, output) < NEAR_TIE


@torch.inference_mode()
def test_logits_past_the_window_are_those_of_transformers(driver, reference, prompts):
    prompt = prompts[-1]
    plan = StepPlan([Row(prompt, 0, [*range(1, 60)], [SampleSpec(GREEDY, len(prompt))])])
    found = driver.executor.logits(plan, [0])
    expected = reference(torch.tensor([prompt]), logits_to_keep=1).logits[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=NEAR_TIE)


def test_it_says_what_is_known(tokenizer, outputs):
    """Transformers reads the same file: what only this converter gets wrong would go unnoticed."""
    assert "capital of the country of France" in tokenizer.decode(outputs[0])


def test_tokens_are_those_of_sentencepiece(tokenizer):
    text = "Hello world\n\n    if x:\t日本語 é 🎭\u0378"
    ids = tokenizer.encode(text, True)
    assert ids[:3] == [2, 9259, 1902]
    assert tokenizer.decode(ids) == text
    spaces, letter = tokenizer.encode(" " * 5, False), tokenizer.encode("a", False)
    assert tokenizer.encode(" " * 5 + "a", False) == spaces + letter
    assert len(spaces + letter) == 2


@torch.inference_mode()
def _gap(reference, prompt: list[int], output: list[int]) -> float:
    """By how much a token misses the best logit, at most."""
    tokens = torch.tensor([prompt + output[:-1]])
    logits = reference(tokens, logits_to_keep=len(output)).logits[0]
    chosen = logits.gather(1, torch.tensor(output)[:, None]).squeeze(1)
    return float((logits.amax(dim=-1) - chosen).max())
