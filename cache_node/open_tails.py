"""Room for the keys of open blocks, which an int4 pool has beside it; see `OpenBlocks`."""

import torch

from cache_node.config import NodeConfig
from cache_node.model.llama import LlamaModel
from kernels.kv_int4 import tail_slots
from kernels.kv_layout import KvLayout
from kernels.open_blocks import tails_for

SPARE = 16
"""For blocks of requests that are not running; those of running ones always have a tail."""


def make_tails(config: NodeConfig, layout: KvLayout, model: LlamaModel) -> torch.Tensor | None:
    """On the model's device, in its dtype. None for a pool of another dtype."""
    if layout.dtype != "int4":
        return None
    needed = tails_for(layout, config.max_num_seqs, config.max_num_batched_tokens)
    return tail_slots(layout, needed + SPARE, model.dtype).to(model.device)
