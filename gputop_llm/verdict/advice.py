"""What several findings advise: the exact flag for each engine, written down once."""

from __future__ import annotations

from gputop_llm.model.advice import Advice

CUDA_GRAPHS = Advice(
    "let CUDA graphs launch the kernels of a step at once",
    {
        "vllm": 'no --enforce-eager; --compilation-config \'{"cudagraph_mode": "FULL_AND_PIECEWISE"}\'',
        "sglang": "no --disable-cuda-graph; --cuda-graph-max-bs (up to the batch that runs)",
        "trtllm": "cuda_graph_config: {enable_padding: true, max_batch_size: (up to the batch that runs)}",
    },
)
CUDA_GRAPHS_IN_TORCH = Advice(
    "outside of an engine: torch.compile(mode='reduce-overhead') or torch.cuda.graph around the decode step"
)
OVERLAP = Advice(
    "prepare the next step while the GPU works on this one",
    {
        "vllm": "--async-scheduling",
        "sglang": "no --disable-overlap-schedule",
        "trtllm": "disable_overlap_scheduler: false",
    },
)
LARGER_BATCHES = Advice(
    "run more sequences at once, while TPOT allows: the host's work for a step then serves more tokens",
    {"vllm": "--max-num-seqs (up)", "sglang": "--max-running-requests (up)", "trtllm": "max_batch_size (up)"},
)
#: What makes an engine launch every kernel by itself.
EAGER_FLAGS = {
    "vllm": "--enforce-eager",
    "sglang": "--disable-cuda-graph",
    "trtllm": "cuda_graph_config: null",
}
FEWER_LAUNCHES = Advice(
    "fewer launches around the replays: fused sampling, no per-request copies, penalties and logprobs only where "
    "they are needed"
)
