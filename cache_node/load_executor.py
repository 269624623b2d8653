"""The executor that a configuration asks for, with its model in memory."""

from importlib.util import find_spec
from pathlib import Path

import torch

from cache_node.config import NodeConfig
from cache_node.executor import ModelExecutor
from cache_node.executor_cpu import make_cpu_executor
from cache_node.kv_scales import KvScales, kv_scales
from cache_node.model.llama import LlamaModel
from cache_node.model.model_config import ModelConfig
from cache_node.model.source import Progress
from cache_node.model.weights import Checkpoint
from cache_node.sizing import WEIGHT_DTYPES, kv_layout
from kernels.kv_layout import KvLayout


def load_executor(config: NodeConfig, directory: Path, progress: Progress) -> ModelExecutor:
    """Loads the model in `directory` (see `find_model`) and warms it up, calling `progress` with
    stages load and warm up.

    Sets the number of torch's threads for the whole process. Raises ValueError when the model is
    not supported, the device is not there, or `config` and model do not go together.
    """
    torch.set_num_threads(config.threads)
    device = choose_device(config.device)
    if device.type == "cpu":
        return make_cpu_executor(config, *_load(config, directory, device, progress))
    from cache_node.gpu_memory import card_to_itself
    from cache_node.make_cuda_executor import make_cuda_executor

    with card_to_itself(device) as free:
        return make_cuda_executor(config, *_load(config, directory, device, progress), free)


def choose_device(name: str) -> torch.device:
    """Of `NodeConfig.device`. Raises ValueError when it is cuda and there is none, or no triton."""
    there = torch.cuda.is_available()
    if name == "cpu" or (name == "auto" and not there):
        return torch.device("cpu")
    if not there:
        raise ValueError(
            f"device: cuda was asked for, but torch {torch.__version__} sees no GPU; use auto or "
            "cpu, or install a build of torch for your GPU"
        )
    if find_spec("triton") is None:
        raise ValueError(
            "device: a GPU needs triton, which is not installed; install kvmesh[gpu], or use cpu"
        )
    return torch.device("cuda", torch.cuda.current_device())


def _load(
    config: NodeConfig, directory: Path, device: torch.device, progress: Progress
) -> tuple[LlamaModel, KvLayout, KvScales]:
    """The model, and what its pool will hold."""
    progress("load", None)
    model_config = ModelConfig.from_directory(directory)
    dtype: torch.dtype = getattr(torch, WEIGHT_DTYPES[config.dtype])
    model = LlamaModel(model_config, Checkpoint(directory), dtype, device)
    scales = kv_scales(directory, model, config.kv_cache_dtype, config.kv_scale_sample)
    layout = kv_layout(model_config, config)
    progress("warm up", None)
    return model, layout, scales
