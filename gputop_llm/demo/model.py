"""What the simulated engines serve, as it would be read from the config.json of real ones."""

from __future__ import annotations

from gputop_llm.demo.roofline import LLAMA_8B, LLAMA_70B
from gputop_llm.model import Target
from gputop_llm.modelconfig import read_shape
from gputop_llm.modelmath import Parallel, ServedModel

_COMMON = {
    "model_type": "llama",
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
_CONFIGS = {
    LLAMA_8B.name: {
        **_COMMON,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "intermediate_size": 14_336,
    },
    LLAMA_70B.name: {
        **_COMMON,
        "hidden_size": 8192,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "intermediate_size": 28_672,
    },
}


def served_model(target: Target) -> ServedModel:
    """The model of a simulated engine, tensor-parallel over its GPUs."""
    config = _CONFIGS.get(target.model or "")
    if config is None:
        return ServedModel(problem="no model is simulated for it")
    gpus = max(1, len(target.gpus))
    return ServedModel(read_shape(config), Parallel(tp=gpus, expert_gpus=gpus), path="simulated config.json")
