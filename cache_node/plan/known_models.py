"""Models that are known by name: the fields of their config.json that size weights and KV.

Each is what the repository in `source` has on https://huggingface.co; `parameters.py` counts the
weights from them, and the counts are those that the models are published with.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

K = 1024
Sizes = tuple[int, int, int, int, int]  # hidden, intermediate, layers, heads, KV heads


@dataclass(frozen=True, slots=True)
class KnownModel:
    source: str
    fields: Mapping[str, Any]  # of config.json


def _model(
    architecture: str, vocab: int, source: str, context: int, sizes: Sizes, **more: Any
) -> KnownModel:
    hidden, intermediate, layers, heads, kv_heads = sizes
    return KnownModel(
        source,
        {
            "architectures": [f"{architecture}ForCausalLM"],
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "vocab_size": vocab,
            "max_position_embeddings": context,
            **more,
        },
    )


def _deepseek(architecture: str, vocab: int, source: str, sizes: Sizes, **more: Any) -> KnownModel:
    return _model(architecture, vocab, source, 160 * K, sizes, **{**MLA, **more})


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
MLA: dict[str, Any] = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "moe_intermediate_size": 1536,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
V3: dict[str, Any] = {
    "q_lora_rank": 1536,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "topk_method": "noaux_tc",
    "quantization_config": {"quant_method": "fp8"},
}

_llama2 = partial(_model, "Llama", 32000)
_llama3 = partial(_model, "Llama", 128256)
_llama31 = partial(_model, "Llama", 128256, rope_scaling=LLAMA3_ROPE)
_llama32 = partial(_model, "Llama", 128256, rope_scaling=LLAMA3_ROPE, tie_word_embeddings=True)
_mistral = partial(_model, "Mistral")
_mixtral = partial(_model, "Mixtral", 32000, num_local_experts=8)
_small_qwen2 = partial(_model, "Qwen2", 151936, tie_word_embeddings=True)
_qwen2 = partial(_model, "Qwen2", 152064)
_qwen3 = partial(_model, "Qwen3", 151936, head_dim=128)
_small_qwen3 = partial(_model, "Qwen3", 151936, head_dim=128, tie_word_embeddings=True)
_qwen3_moe = partial(_model, "Qwen3Moe", 151936, head_dim=128, num_experts=128)
_gemma2 = partial(_model, "Gemma2", 256000, head_dim=256, tie_word_embeddings=True)
_small_gemma3 = partial(
    _model, "Gemma3", 262144, head_dim=256, tie_word_embeddings=True, sliding_window=512
)
_large_gemma3 = partial(
    _model, "Gemma3", 262208, head_dim=256, tie_word_embeddings=True, sliding_window=1024
)
_phi3 = partial(_model, "Phi3", 32064)
_smollm2 = partial(_model, "Llama", 49152, tie_word_embeddings=True)

LLAMA_70B = (8192, 28672, 80, 64)
KNOWN_MODELS = {
    # Nobody has published weights of it: Llama-2-70B as if each head had its own keys and values,
    # by which the worth of GQA is often told.
    "llama-70b-mha": _llama2("none: Llama-2-70b-hf with 64 KV heads", 4096, (*LLAMA_70B, 64)),
    "llama-65b": _llama2("huggyllama/llama-65b", 2048, (8192, 22016, 80, 64, 64)),
    "llama-2-7b": _llama2("meta-llama/Llama-2-7b-hf", 4096, (4096, 11008, 32, 32, 32)),
    "llama-2-13b": _llama2("meta-llama/Llama-2-13b-hf", 4096, (5120, 13824, 40, 40, 40)),
    "llama-2-70b": _llama2("meta-llama/Llama-2-70b-hf", 4096, (*LLAMA_70B, 8)),
    "llama-3-8b": _llama3("meta-llama/Meta-Llama-3-8B", 8192, (4096, 14336, 32, 32, 8)),
    "llama-3-70b": _llama3("meta-llama/Meta-Llama-3-70B", 8192, (*LLAMA_70B, 8)),
    "llama-3.1-8b": _llama31("meta-llama/Llama-3.1-8B", 128 * K, (4096, 14336, 32, 32, 8)),
    "llama-3.1-70b": _llama31("meta-llama/Llama-3.1-70B", 128 * K, (*LLAMA_70B, 8)),
    "llama-3.1-405b": _llama31("meta-llama/Llama-3.1-405B", 128 * K, (16384, 53248, 126, 128, 8)),
    "llama-3.2-1b": _llama32("meta-llama/Llama-3.2-1B", 128 * K, (2048, 8192, 16, 32, 8)),
    "llama-3.2-3b": _llama32("meta-llama/Llama-3.2-3B", 128 * K, (3072, 8192, 28, 24, 8)),
    "llama-3.3-70b": _llama31("meta-llama/Llama-3.3-70B-Instruct", 128 * K, (*LLAMA_70B, 8)),
    "mistral-7b-v0.1": _mistral(
        32000, "mistralai/Mistral-7B-v0.1", 32 * K, (4096, 14336, 32, 32, 8), sliding_window=4096
    ),
    "mistral-7b-v0.3": _mistral(
        32768, "mistralai/Mistral-7B-v0.3", 32 * K, (4096, 14336, 32, 32, 8), sliding_window=None
    ),
    "mixtral-8x7b": _mixtral("mistralai/Mixtral-8x7B-v0.1", 32 * K, (4096, 14336, 32, 32, 8)),
    "mixtral-8x22b": _mixtral("mistralai/Mixtral-8x22B-v0.1", 64 * K, (6144, 16384, 56, 48, 8)),
    "qwen2-0.5b": _small_qwen2("Qwen/Qwen2-0.5B-Instruct", 32 * K, (896, 4864, 24, 14, 2)),
    "qwen2-1.5b": _small_qwen2("Qwen/Qwen2-1.5B-Instruct", 32 * K, (1536, 8960, 28, 12, 2)),
    "qwen2-7b": _qwen2("Qwen/Qwen2-7B-Instruct", 32 * K, (3584, 18944, 28, 28, 4)),
    "qwen2-72b": _qwen2("Qwen/Qwen2-72B-Instruct", 32 * K, (8192, 29568, 80, 64, 8)),
    "qwen2.5-0.5b": _small_qwen2("Qwen/Qwen2.5-0.5B-Instruct", 32 * K, (896, 4864, 24, 14, 2)),
    "qwen2.5-1.5b": _small_qwen2("Qwen/Qwen2.5-1.5B-Instruct", 32 * K, (1536, 8960, 28, 12, 2)),
    "qwen2.5-3b": _small_qwen2("Qwen/Qwen2.5-3B-Instruct", 32 * K, (2048, 11008, 36, 16, 2)),
    "qwen2.5-7b": _qwen2("Qwen/Qwen2.5-7B-Instruct", 32 * K, (3584, 18944, 28, 28, 4)),
    "qwen2.5-14b": _qwen2("Qwen/Qwen2.5-14B-Instruct", 32 * K, (5120, 13824, 48, 40, 8)),
    "qwen2.5-32b": _qwen2("Qwen/Qwen2.5-32B-Instruct", 32 * K, (5120, 27648, 64, 40, 8)),
    "qwen2.5-72b": _qwen2("Qwen/Qwen2.5-72B-Instruct", 32 * K, (8192, 29568, 80, 64, 8)),
    "qwen3-0.6b": _small_qwen3("Qwen/Qwen3-0.6B", 40 * K, (1024, 3072, 28, 16, 8)),
    "qwen3-1.7b": _small_qwen3("Qwen/Qwen3-1.7B", 40 * K, (2048, 6144, 28, 16, 8)),
    "qwen3-4b": _small_qwen3("Qwen/Qwen3-4B", 40 * K, (2560, 9728, 36, 32, 8)),
    "qwen3-8b": _qwen3("Qwen/Qwen3-8B", 40 * K, (4096, 12288, 36, 32, 8)),
    "qwen3-14b": _qwen3("Qwen/Qwen3-14B", 40 * K, (5120, 17408, 40, 40, 8)),
    "qwen3-32b": _qwen3("Qwen/Qwen3-32B", 40 * K, (5120, 25600, 64, 64, 8)),
    "qwen3-30b-a3b": _qwen3_moe(
        "Qwen/Qwen3-30B-A3B", 40 * K, (2048, 6144, 48, 32, 4), moe_intermediate_size=768
    ),
    "qwen3-235b-a22b": _qwen3_moe(
        "Qwen/Qwen3-235B-A22B", 40 * K, (4096, 12288, 94, 64, 4), moe_intermediate_size=1536
    ),
    "gemma-2-2b": _gemma2("google/gemma-2-2b", 8192, (2304, 9216, 26, 8, 4)),
    "gemma-2-9b": _gemma2("google/gemma-2-9b", 8192, (3584, 14336, 42, 16, 8)),
    "gemma-2-27b": _gemma2("google/gemma-2-27b", 8192, (4608, 36864, 46, 32, 16), head_dim=128),
    "gemma-3-270m": _small_gemma3("google/gemma-3-270m", 32 * K, (640, 2048, 18, 4, 1)),
    "gemma-3-1b": _small_gemma3("google/gemma-3-1b-it", 32 * K, (1152, 6912, 26, 4, 1)),
    "gemma-3-4b": _large_gemma3(
        "google/gemma-3-4b-it, its text part", 128 * K, (2560, 10240, 34, 8, 4)
    ),
    "gemma-3-12b": _large_gemma3(
        "google/gemma-3-12b-it, its text part", 128 * K, (3840, 15360, 48, 16, 8)
    ),
    "gemma-3-27b": _large_gemma3(
        "google/gemma-3-27b-it, its text part", 128 * K, (5376, 21504, 62, 32, 16), head_dim=128
    ),
    "deepseek-v2-lite": _deepseek(
        "DeepseekV2",
        102400,
        "deepseek-ai/DeepSeek-V2-Lite",
        (2048, 10944, 27, 16, 16),
        q_lora_rank=None,
        n_routed_experts=64,
        moe_intermediate_size=1408,
    ),
    "deepseek-v2": _deepseek(
        "DeepseekV2",
        102400,
        "deepseek-ai/DeepSeek-V2",
        (5120, 12288, 60, 128, 128),
        q_lora_rank=1536,
        n_routed_experts=160,
    ),
    "deepseek-v3": _deepseek(
        "DeepseekV3", 129280, "deepseek-ai/DeepSeek-V3", (7168, 18432, 61, 128, 128), **V3
    ),
    "deepseek-r1": _deepseek(
        "DeepseekV3", 129280, "deepseek-ai/DeepSeek-R1", (7168, 18432, 61, 128, 128), **V3
    ),
    "phi-3-mini-4k": _phi3(
        "microsoft/Phi-3-mini-4k-instruct", 4096, (3072, 8192, 32, 32, 32), sliding_window=2047
    ),
    "phi-3-mini-128k": _phi3(
        "microsoft/Phi-3-mini-128k-instruct",
        128 * K,
        (3072, 8192, 32, 32, 32),
        sliding_window=256 * K,
    ),
    "phi-3-medium-4k": _phi3(
        "microsoft/Phi-3-medium-4k-instruct", 4096, (5120, 17920, 40, 40, 10), sliding_window=2047
    ),
    "smollm2-135m": _smollm2("HuggingFaceTB/SmolLM2-135M-Instruct", 8192, (576, 1536, 30, 9, 3)),
    "smollm2-360m": _smollm2("HuggingFaceTB/SmolLM2-360M-Instruct", 8192, (960, 2560, 32, 15, 5)),
    "smollm2-1.7b": _smollm2("HuggingFaceTB/SmolLM2-1.7B-Instruct", 8192, (2048, 8192, 24, 32, 32)),
}
