"""What several rules advise: the exact flag for each engine, written down once."""

from __future__ import annotations

from gputop_llm.model.symptom import Advice

CUDA_GRAPHS = Advice(
    "let CUDA graphs launch the kernels of a step at once",
    {
        "vllm": 'no --enforce-eager; --compilation-config \'{"cudagraph_mode": "FULL_AND_PIECEWISE"}\'',
        "sglang": "no --disable-cuda-graph; --cuda-graph-max-bs (up to the batch that runs)",
        "trtllm": "cuda_graph_config.max_batch_size (up to the batch that runs)",
    },
)
OVERLAP = Advice(
    "overlap the scheduler with the GPU's work",
    {
        "vllm": "--async-scheduling",
        "sglang": "no --disable-overlap-schedule",
        "trtllm": "disable_overlap_scheduler: false",
    },
)
MORE_FRONT_ENDS = Advice(
    "take HTTP, tokenising and detokenising off the one process",
    {
        "vllm": "--api-server-count (up)",
        "sglang": "--tokenizer-worker-num (up)",
        "trtllm": "num_postprocess_workers (up)",
    },
)
LARGER_BATCHES = Advice(
    "run more sequences at once, while TPOT allows: each pass over the weights then makes more tokens",
    {"vllm": "--max-num-seqs (up)", "sglang": "--max-running-requests (up)", "trtllm": "max_batch_size (up)"},
)
SMALLER_WEIGHTS = Advice(
    "quantise the weights: fewer bytes to read, faster tensor-core arithmetic",
    {"vllm": "--quantization fp8", "sglang": "--quantization fp8", "trtllm": "quant_config.quant_algo: FP8"},
)
SMALLER_KV = Advice(
    "store the KV cache in 8 bits",
    {
        "vllm": "--kv-cache-dtype fp8",
        "sglang": "--kv-cache-dtype fp8_e5m2",
        "trtllm": "kv_cache_config.dtype: fp8",
    },
)
SMALLER_CHUNKS = Advice(
    "smaller prefill chunks: lower peaks, and decode waits less for them",
    {
        "vllm": "--max-num-batched-tokens (down)",
        "sglang": "--chunked-prefill-size (down)",
        "trtllm": "enable_chunked_prefill: true, max_num_tokens (down)",
    },
)
LESS_GPU_MEMORY = Advice(
    "leave more of the GPU's memory free",
    {
        "vllm": "--gpu-memory-utilization (down)",
        "sglang": "--mem-fraction-static (down)",
        "trtllm": "kv_cache_config.free_gpu_memory_fraction (down)",
    },
)
FEWER_GPUS_A_COPY = Advice(
    "fewer GPUs for one copy of the model, and more copies",
    {
        "vllm": "--tensor-parallel-size (down), --data-parallel-size (up)",
        "sglang": "--tp-size (down), --dp-size (up)",
        "trtllm": "tensor_parallel_size (down), more servers",
    },
)
