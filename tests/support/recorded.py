"""Recorded captures as timelines, each read once for a test process."""

from __future__ import annotations

from functools import lru_cache

from gputop_llm.timeline.model import Timeline
from gputop_llm.timeline.read_kineto import read_kineto
from gputop_llm.timeline.read_nsys import read_nsys
from gputop_llm.verdict.context import Context
from tests.support.captures import CAPTURES

VLLM_GRAPHS = "h200/nsys-2025.3.1_vllm-0.24-graphs.sqlite.xz"
VLLM_NODES = "h200/kineto_vllm-0.24_cuda-only_0.5s.json.gz"
EAGER = "h200/nsys-2023.4.4_torch-eager-decode.sqlite.xz"
EAGER_KINETO = "h200/kineto_torch-eager-decode_cpu+cuda_0.5s.json.gz"
VIDEO = "public/nsysai_h100_2gpu_1s.sqlite.xz"
TRAINING = "public/hta_negq.json.gz"
QWEN = "public/tl_h100_qwen.json.gz"
AMD_DECODE = "public/tl_vllm_decode.json.gz"
TINY_GRAPHS = "public/flameox_graph_2025.5.2.sqlite"
FOUR_GPUS = "field-cases/22-same-stream-id-on-three-gpus/capture.sqlite"
WITH_KERNELS = (
    VLLM_GRAPHS,
    VLLM_NODES,
    EAGER,
    EAGER_KINETO,
    VIDEO,
    TRAINING,
    QWEN,
    AMD_DECODE,
    TINY_GRAPHS,
    FOUR_GPUS,
)


@lru_cache(maxsize=4)
def timeline(name: str) -> Timeline:
    """A capture of the repository."""
    path = CAPTURES / name
    return read_nsys([path]) if ".sqlite" in name else read_kineto([path])


@lru_cache(maxsize=4)
def context(name: str) -> Context:
    """A capture with what analyses share."""
    return Context(timeline(name))
