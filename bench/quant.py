"""What a quantised KV cache costs in quality, and what it brings.

All dtypes run the same tokens through the pool, so that figures come in pairs with those of `auto`:
noise that all have in common cancels out.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev

import torch

from bench.figures import Goal
from cache_node.config import KV_CACHE_DTYPES, NodeConfig
from cache_node.executor import ModelExecutor
from cache_node.load_executor import load_executor
from cache_node.sampling import SampleSpec, SamplingParams
from cache_node.step_plan import Row, StepPlan
from kvmesh.tokenizer import Tokenizer

LICENCES = Path("/usr/share/common-licenses")  # of Debian's base-files
BLOCK_SIZE, NUM_BLOCKS = 16, 560
WINDOW = 1024  # tokens, each read on its own
PROMPT, ANSWER = 256, 32  # of the greedy runs
NEEDLE_CONTEXT = 4096
BATCH, CONTEXT, DECODE_STEPS = 8, 1024, 12
CAPACITY_BYTES = 1 << 30

# By dtype: perplexity over that of auto, capacity over that of auto, decode time over that of auto.
WORSE = {"fp8": 0.015, "int8": 0.005, "int4": 0.03}
CAPACITY = {"fp8": 1.9, "int8": 1.9, "int4": 3.2}
SLOWER = 1.3

GREEDY = SamplingParams(temperature=0.0)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of everything."""

    windows: int
    prompts: int
    needles: int
    repetitions: int


FULL, QUICK = Amount(36, 16, 8, 5), Amount(8, 8, 3, 3)


@dataclass(frozen=True, slots=True)
class Change:
    """Of the perplexity, over that of auto, with its confidence interval of 95 %."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Quality:
    dtype: str
    perplexity: float
    change: Change
    agreement: float  # of greedy tokens with those of auto, up to the first other one
    needles: int  # found
    blocks: int  # of CAPACITY_BYTES
    capacity: float  # over that of auto
    decode_seconds: float  # a step of BATCH × CONTEXT
    decode_ratio: float  # over that of auto

    @property
    def goals(self) -> list[Goal]:
        if self.dtype not in WORSE:
            return []
        return [
            Goal(f"{self.dtype}: perplexity over auto's", self.change.value, WORSE[self.dtype]),
            Goal(f"{self.dtype}: capacity", self.capacity, CAPACITY[self.dtype], at_most=False),
            Goal(f"{self.dtype}: decode time over auto's", self.decode_ratio, SLOWER),
        ]


@dataclass(frozen=True, slots=True)
class QuantResult:
    tokens: int  # that perplexity was measured over
    needles: int
    rows: Sequence[Quality]


def measure_quant(directory: Path, text: str, amount: Amount, say: Say) -> QuantResult:
    """`directory` is a model's. Raises ValueError when `text` is too short for `amount`."""
    torch.set_num_threads(1)
    tokens = Tokenizer.from_directory(directory).encode(text, add_special_tokens=False)
    if len(tokens) < amount.windows * WINDOW:
        raise ValueError(
            f"the text has {len(tokens)} tokens, {amount.windows * WINDOW} are read: give more"
        )
    needles = _needles(directory, tokens, amount.needles)
    losses, answers, found, executors = {}, {}, {}, {}
    for dtype in KV_CACHE_DTYPES:
        config = NodeConfig(
            kv_cache_dtype=dtype,
            block_size=BLOCK_SIZE,
            num_blocks=NUM_BLOCKS,
            max_num_batched_tokens=BATCH * CONTEXT,  # prompts are read in one step
        )
        executor = load_executor(config, directory, lambda _stage, _fraction: None)
        say(f"{dtype}: perplexity over {amount.windows * WINDOW} tokens")
        losses[dtype] = [
            _loss(executor, tokens[i * WINDOW : (i + 1) * WINDOW]) for i in range(amount.windows)
        ]
        say(f"{dtype}: greedy answers, and needles in {NEEDLE_CONTEXT} tokens")
        answers[dtype] = [
            _answer(executor, tokens[i * WINDOW :][:PROMPT], ANSWER) for i in range(amount.prompts)
        ]
        found[dtype] = sum(
            _answer(executor, prompt, len(wanted)) == wanted for prompt, wanted in needles
        )
        executors[dtype] = executor
    say(f"decode steps of {BATCH} × {CONTEXT}")
    seconds = _decode_seconds(executors, amount.repetitions)
    blocks = {name: each.layout.num_blocks(CAPACITY_BYTES) for name, each in executors.items()}
    rows = [
        Quality(
            dtype=dtype,
            perplexity=math.exp(fmean(losses[dtype])),
            change=_change(losses[dtype], losses["auto"]),
            agreement=_agreement(answers[dtype], answers["auto"]),
            needles=found[dtype],
            blocks=blocks[dtype],
            capacity=blocks[dtype] / blocks["auto"],
            decode_seconds=median(seconds[dtype]),
            decode_ratio=median(
                own / auto for own, auto in zip(seconds[dtype], seconds["auto"], strict=True)
            ),
        )
        for dtype in KV_CACHE_DTYPES
    ]
    return QuantResult(amount.windows * WINDOW, amount.needles, rows)


def licence_text() -> str:
    """All licences that Debian ships, one behind the other. Raises FileNotFoundError elsewhere."""
    if not LICENCES.is_dir():
        raise FileNotFoundError(f"{LICENCES} is not there; give a text with --text")
    files = [path for path in sorted(LICENCES.iterdir()) if not path.is_symlink()]
    return "\n\n".join(path.read_text(errors="replace") for path in files)


def _loss(executor: ModelExecutor, tokens: Sequence[int]) -> float:
    """Mean negative log-probability of all tokens but the first, in nats."""
    row = Row(tokens[:-1], 0, range(1, 1 + len(tokens) // BLOCK_SIZE), targets=tokens[1:])
    (result,) = executor.run(StepPlan([row]))
    return -fmean(each.logprob for each in result.prompt_logprobs)


def _answer(executor: ModelExecutor, prompt: Sequence[int], count: int) -> list[int]:
    """The most probable `count` tokens, one step each: all are read back from the pool."""
    table = range(1, 2 + (len(prompt) + count) // BLOCK_SIZE)
    answer: list[int] = []
    new, start = prompt, 0
    while len(answer) < count:
        spec = SampleSpec(GREEDY, position=start + len(new))
        (result,) = executor.run(StepPlan([Row(new, start, table, [spec])]))
        start += len(new)
        answer.append(result.choices[0].token)
        new = answer[-1:]
    return answer


def _needles(
    directory: Path, filler: Sequence[int], count: int
) -> list[tuple[list[int], list[int]]]:
    """Prompts with a number at some depth of a long text, and the tokens of that number."""
    tokenizer = Tokenizer.from_directory(directory)

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    question = encode("\n\nThe secret number of the lighthouse keeper is")
    needles = []
    for i in range(count):
        number = str((7919 * (i + 3)) % 9000 + 1000)
        needle = encode(f"\n\nThe secret number of the lighthouse keeper is {number}.\n\n")
        room = NEEDLE_CONTEXT - len(needle) - len(question)
        depth = room * (2 * i + 1) // (2 * count)
        prompt = [*filler[:depth], *needle, *filler[depth:room], *question]
        needles.append((prompt, encode(f" {number}")))
    return needles


def _decode_seconds(
    executors: dict[str, ModelExecutor], repetitions: int
) -> dict[str, list[float]]:
    """CPU time of a decode step, all dtypes in turns."""
    width = CONTEXT // BLOCK_SIZE
    tables = (torch.randperm(BATCH * width) + 1).view(BATCH, width).tolist()
    spec = SampleSpec(GREEDY, position=CONTEXT)
    prompts = [Row([5 + i] * (CONTEXT - 1), 0, table) for i, table in enumerate(tables)]
    plan = StepPlan([Row([9], CONTEXT - 1, table, [spec]) for table in tables])
    for executor in executors.values():
        executor.run(StepPlan(prompts))
        executor.run(plan)
    seconds: dict[str, list[float]] = {name: [] for name in executors}
    for _ in range(repetitions):
        for name, executor in executors.items():
            started = time.thread_time()
            for _ in range(DECODE_STEPS):
                executor.run(plan)
            seconds[name].append((time.thread_time() - started) / DECODE_STEPS)
    return seconds


def _change(losses: Sequence[float], auto: Sequence[float]) -> Change:
    """By the mean difference of windows, which are independent, and its standard error."""
    differences = [own - other for own, other in zip(losses, auto, strict=True)]
    mean, error = fmean(differences), 1.96 * stdev(differences) / math.sqrt(len(differences))
    return Change(*(math.expm1(each) for each in (mean, mean - error, mean + error)))


def _agreement(answers: Sequence[Sequence[int]], auto: Sequence[Sequence[int]]) -> float:
    def common(own: Sequence[int], other: Sequence[int]) -> float:
        equal = [a == b for a, b in zip(own, other, strict=True)]
        return (equal.index(False) if False in equal else len(equal)) / len(equal)

    return fmean(common(own, other) for own, other in zip(answers, auto, strict=True))
