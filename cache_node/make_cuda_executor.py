"""A CUDA executor with pools as large as the card allows, warmed up."""

import gc

import structlog
import torch

from cache_node.config import NodeConfig
from cache_node.decode_graphs import graph_sizes
from cache_node.executor_cuda import CudaExecutor
from cache_node.gpu_memory import MemoryProfile
from cache_node.kv_scales import KvScales
from cache_node.model.llama import LlamaModel
from cache_node.open_tails import make_tails
from cache_node.sampling import SampleSpec, SamplingParams
from cache_node.sizing import cpu_pool_blocks, kv_blocks
from cache_node.step_plan import Row, StepPlan
from kernels.kv_layout import KvLayout
from kernels.kv_pool import KvPool

log = structlog.get_logger()


def make_cuda_executor(
    config: NodeConfig, model: LlamaModel, layout: KvLayout, scales: KvScales, free: int
) -> CudaExecutor:
    """`free` is what the card had before `model` was loaded. Raises ValueError where there is not
    as much memory as `config` asks for.
    """
    largest = largest_step(config, model.config.max_positions)

    def left() -> int:
        profile = _profile(_make(config, model, layout, scales, 2, 1), largest, free)
        gc.collect()  # what was captured for the trial
        torch.cuda.empty_cache()
        log.info("gpu_memory", node=config.node_name, **profile.as_log())
        return profile.kv_cache_bytes(config.gpu_memory_utilization)

    blocks = kv_blocks(config, layout, left)
    executor = _make(config, model, layout, scales, blocks, cpu_pool_blocks(config, layout))
    executor.run(largest)
    executor.run(StepPlan([Row([0, 0], 0, [1])]))  # a prefill, should that have been none
    executor.capture()
    executor.measure_copies()
    return executor


def largest_step(config: NodeConfig, max_positions: int) -> StepPlan:
    """As many tokens and rows as the scheduler may plan. All write to block 1."""
    longest = config.max_model_len or max_positions
    tokens = min(config.max_num_batched_tokens, config.max_num_seqs * longest)
    count = min(config.max_num_seqs, tokens)
    shares = [tokens // count + (i < tokens % count) for i in range(count)]
    greedy = SamplingParams(temperature=0.0)
    return StepPlan(
        [Row([0] * n, 0, [1] * -(-n // config.block_size), [SampleSpec(greedy, n)]) for n in shares]
    )


def _make(
    config: NodeConfig,
    model: LlamaModel,
    layout: KvLayout,
    scales: KvScales,
    num_blocks: int,
    num_cpu_blocks: int,
) -> CudaExecutor:
    heads, centres = (None if each is None else each.to(model.device) for each in scales)
    size = layout.bytes_per_block * num_blocks
    try:
        raw = torch.zeros(
            (num_blocks, layout.bytes_per_block), dtype=torch.uint8, device=model.device
        )
        tails = make_tails(config, layout, model)
    except RuntimeError as error:  # more than there is, more than can be addressed
        raise ValueError(
            f"kv_cache_bytes: the card has no {size} bytes for {num_blocks} blocks; give the pool "
            "less"
        ) from error
    longest = config.max_model_len or model.config.max_positions
    return CudaExecutor(
        model,
        KvPool(layout, raw, heads, tails, centres),
        num_cpu_blocks,
        graph_sizes(config.max_num_seqs),
        longest,
    )


def _profile(trial: CudaExecutor, largest: StepPlan, free: int) -> MemoryProfile:
    """Runs the largest step there can be and captures all graphs, on a pool of next to nothing."""
    device = trial.device
    torch.cuda.reset_peak_memory_stats(device)
    trial.run(largest)
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(device)
    trial.capture()
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved(device)
    left, total = torch.cuda.mem_get_info(device)
    return MemoryProfile(
        total=total,
        free=free,
        peak=peak,
        graphs=max(0, reserved - before),
        outside=max(0, free - left - reserved),
    )
