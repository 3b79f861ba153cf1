"""The decode-like loop of tests/gpu/test_rerun_gpu.py, as a model's config.json would have it."""

from __future__ import annotations

CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}  # fmt: skip
