"""Drives an executor without engine or scheduler: block tables are handed out once and kept."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers

from cache_node.config import NodeConfig
from cache_node.executor import ModelExecutor
from cache_node.load_executor import load_executor
from cache_node.sampling import SampleSpec, SamplingParams
from cache_node.step_plan import Row, StepPlan

GREEDY = SamplingParams(temperature=0.0)


def make_executor(directory: Path, dtype: str = "float32", **config: object) -> ModelExecutor:
    settings = {"device": "cpu", "num_blocks": 512, "block_size": 16, **config}
    return load_executor(NodeConfig(dtype=dtype, **settings), directory, lambda stage, done: None)


def reference_model(directory: Path, dtype: torch.dtype) -> transformers.PreTrainedModel:
    """The same files in transformers, with its default attention: the fused one, the formula
    spelled out for Gemma 2.
    """
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()


@dataclass
class Driven:
    """One sequence: its tokens so far, and how many of them have their KV in the pool."""

    tokens: list[int]
    table: Sequence[int]
    prompt_length: int
    computed: int = 0
    params: SamplingParams = GREEDY
    sample_index: int = 0

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    def row(self, chunk: int) -> Row:
        end = min(len(self.tokens), self.computed + chunk)
        complete = end == len(self.tokens)
        samples = [SampleSpec(self.params, end, self.sample_index)] if complete else []
        return Row(self.tokens[self.computed : end], self.computed, self.table, samples)


@dataclass
class Driver:
    """Hands out blocks in an order that is never ascending, so that no test passes by luck."""

    executor: ModelExecutor
    _free: list[int] = field(init=False)

    def __post_init__(self) -> None:
        count = self.executor.num_blocks
        self._free = [*range(1, count, 2), *range(2, count, 2)]

    def add(
        self, prompt: Sequence[int], new_tokens: int, params: SamplingParams = GREEDY
    ) -> Driven:
        count = self.executor.layout.blocks_for(len(prompt) + new_tokens)
        table = [self._free.pop() for _ in range(count)]
        return Driven(list(prompt), table, len(prompt), params=params)

    def step(self, sequences: Sequence[Driven], chunk: int = 1 << 30) -> None:
        """Runs one step in which every sequence computes at most `chunk` tokens."""
        rows = [sequence.row(chunk) for sequence in sequences]
        results = self.executor.run(StepPlan(rows))
        for sequence, row, result in zip(sequences, rows, results, strict=True):
            sequence.computed = row.end
            sequence.tokens.extend(choice.token for choice in result.choices)

    def generate(
        self, prompts: Sequence[Sequence[int]], new_tokens: int, chunk: int = 1 << 30
    ) -> list[list[int]]:
        """Greedy tokens of all prompts, computed as one batch for as long as each lasts."""
        sequences = [self.add(prompt, new_tokens) for prompt in prompts]
        while running := [s for s in sequences if len(s.output) < new_tokens]:
            self.step(running, chunk)
        return [sequence.output for sequence in sequences]
