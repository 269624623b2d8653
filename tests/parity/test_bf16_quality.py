"""bfloat16 inference is as close to float32 as transformers' is, over a real text."""

from pathlib import Path

import torch
from torch.nn.functional import kl_div

from cache_node.executor import ModelExecutor
from cache_node.step_plan import Row
from kvmesh.tokenizer import Tokenizer
from tests.model_driver import make_executor, reference_model

LICENCES = (Path("/usr/share/common-licenses/GPL-3"), Path(__file__).parents[2] / "LICENSE")
TOKENS, CHUNK = 2048, 512


def test_bf16_loses_no_more_than_transformers_in_bf16(smollm2):
    tokens = _english(Tokenizer.from_directory(smollm2))
    exact = _reference_logits(smollm2, tokens, torch.float32)
    theirs = _divergence(exact, _reference_logits(smollm2, tokens, torch.bfloat16))
    ours = _divergence(exact, _our_logits(make_executor(smollm2, "bfloat16"), tokens))
    print(f"mean KL, top-1 agreement: ours {ours}, transformers {theirs}")
    assert ours[0] <= 1.2 * theirs[0]
    assert ours[1] >= theirs[1] - 0.01


def _english(tokenizer: Tokenizer) -> list[int]:
    path = next(path for path in LICENCES if path.is_file())
    return tokenizer.encode(path.read_text(encoding="utf-8"), add_special_tokens=False)[:TOKENS]


@torch.inference_mode()
def _reference_logits(directory: Path, tokens: list[int], dtype: torch.dtype) -> torch.Tensor:
    return reference_model(directory, dtype)(torch.tensor([tokens])).logits[0]


def _our_logits(executor: ModelExecutor, tokens: list[int]) -> torch.Tensor:
    table = range(1, 1 + executor.layout.blocks_for(len(tokens)))
    chunks = [
        executor.prompt_logits(Row(tokens[start : start + CHUNK], start, table, None))
        for start in range(0, len(tokens), CHUNK)
    ]
    return torch.cat(chunks)


def _divergence(exact: torch.Tensor, other: torch.Tensor) -> tuple[float, float]:
    """Mean KL(exact ‖ other) in nats, and how often both have the same most probable token."""
    divergence, agreed = 0.0, 0
    for expected, found in zip(exact.split(64), other.split(64), strict=True):
        logs = expected.log_softmax(dim=-1), found.float().log_softmax(dim=-1)
        divergence += float(kl_div(logs[1], logs[0], reduction="sum", log_target=True))
        agreed += int((expected.argmax(dim=-1) == found.argmax(dim=-1)).sum())
    return divergence / len(exact), agreed / len(exact)
