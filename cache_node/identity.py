"""What the node tells of itself: the part of its state that is constant for an epoch."""

import time

from cache_node.config import NodeConfig
from cache_node.executor import ModelExecutor
from cache_node.kv_scales import KvScales
from cache_node.sizing import fitting_max_model_len
from kvmesh import __version__
from kvmesh.tokenizer import Tokenizer
from kvmesh.v1 import cache_node_pb2 as pb
from prefix_index.keys import SCHEME_VERSION

LAYOUT = "block-layer-kv-head-slot-element"


def new_epoch() -> int:
    """Larger at each start of the process: milliseconds of the wall clock."""
    return time.time_ns() // 1_000_000


def node_info(
    config: NodeConfig, executor: ModelExecutor, fingerprint: bytes, tokenizer: Tokenizer
) -> pb.NodeInfo:
    """Without the tokenizer files.

    Raises ValueError when one sequence of max_model_len does not fit the pool.
    """
    layout, model, pool = executor.layout, executor.model_config, executor.pool
    max_model_len = fitting_max_model_len(config, model.max_positions, layout, executor.num_blocks)
    return pb.NodeInfo(
        name=config.node_name,
        epoch=new_epoch(),
        model=config.model_name,
        model_fingerprint=fingerprint,
        key_scheme=pb.KeyScheme(
            version=SCHEME_VERSION,
            block_size=layout.block_size,
            # The KV's bytes depend on the model's dtype: nodes of another one share no block.
            kv_cache_dtype=f"{config.kv_cache_dtype}/{executor.dtype}",
            layout=LAYOUT,
            scale_fingerprint=KvScales(pool.head_scales, pool.centres).fingerprint,
        ),
        max_model_len=max_model_len,
        num_blocks=executor.num_blocks - 1,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        vocab_size=model.vocab_size,
        kv_bytes_per_token=layout.bytes_per_token,
        eos_token_ids=tokenizer.eos_token_ids,
        version=__version__,
        num_cpu_blocks=executor.num_cpu_blocks - 1,
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        device=executor.device.type,
        dtype=executor.dtype,
    )
