"""The recorded captures as timelines and contexts, each read once in a test process."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from gputop_llm.timeline.model import Timeline
from gputop_llm.timeline.read_kineto import read_kineto
from gputop_llm.timeline.read_nsys import read_nsys
from gputop_llm.verdict.context import Context
from tests.support.captures import CAPTURES, field_case
from tests.support.synth import Schedule
from tests.support.synth_timeline import timeline_of

NSYS_VLLM = "h200/nsys-2025.3.1_vllm-0.24-graphs.sqlite.xz"
NSYS_EAGER = "h200/nsys-2023.4.4_torch-eager-decode.sqlite.xz"
KINETO_EAGER = "h200/kineto_torch-eager-decode_cpu+cuda_0.5s.json.gz"
KINETO_VLLM = "h200/kineto_vllm-0.24_cuda-only_0.5s.json.gz"
KINETO_VLLM_CPU = "h200/kineto_vllm-0.24_cpu+cuda_0.5s.json.gz"
OFFLOAD = "public/nsysai_h100_2gpu_1s.sqlite.xz"
SMOKE = "public/flameox_graph_2025.5.2.sqlite"
NO_KERNELS = "public/lt_gemm.sqlite"
QWEN = "public/tl_h100_qwen.json.gz"
AMD = "public/tl_vllm_decode.json.gz"
TRAINING = "public/hta_negq.json.gz"


def timeline(path: Path) -> Timeline:
    """A file as a timeline."""
    return (read_nsys if ".sqlite" in path.name else read_kineto)([path])


@lru_cache(maxsize=4)
def recorded(name: str) -> Context:
    """A capture of `captures/`."""
    return Context(timeline(CAPTURES / name))


def case(number: int, name: str) -> Context:
    """A file of a field case."""
    return Context(timeline(field_case(number) / name))


def made(schedule: Schedule, recorder: str = "native") -> Context:
    """A synthetic schedule."""
    return Context(timeline_of(schedule, recorder))


def only(found):
    """The one item of a sequence."""
    (one,) = found
    return one


def fact(finding, name: str):
    """The one fact of a finding with this name."""
    return only(f for f in finding.facts if f.name == name)
