"""How long one engine step takes on a GPU, and what it does to it: a roofline per kind of kernel.

Matrix multiplications take the longer of reading the weights and doing the FLOPs;
attention reads the KV cache (decode) or multiplies (prefill); tensor parallelism adds
all-reduces; the host adds a gap in which the GPU has nothing to do. The constants give
what an H200 does with bf16 weights, to the accuracy that a demo needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_BF16_BYTES = 2
_BANDWIDTH_REACHED = 0.66
_GEMM_REACHED = 0.58
_PREFILL_ATTENTION_REACHED = 0.45
_ALL_REDUCE_LATENCY_S = 9e-6
_HOST_GAP_S = 0.45e-3
_HOST_GAP_PER_SEQ_S = 3e-6
_HOST_STEP_S = 1.4e-3
_HOST_STEP_PER_SEQ_S = 16e-6
_SPINNING_SMS = 0.12


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """Peaks of one GPU; bandwidth of NVLink per direction."""

    name: str
    mem_bytes: int
    hbm_bytes_per_s: float
    bf16_flop_per_s: float
    nvlink_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The shape of a dense decoder with grouped-query attention, in bf16."""

    name: str
    params: float
    layers: int
    hidden: int
    kv_heads: int
    head_dim: int

    @property
    def weight_bytes(self) -> float:
        return self.params * _BF16_BYTES

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * _BF16_BYTES


H200 = GpuSpec("NVIDIA H200", 150_754_820_096, 4.8e12, 989e12, 450e9)
LLAMA_8B = ModelSpec("demo/llama-8b", 8.03e9, 32, 4096, 8, 128)
LLAMA_70B = ModelSpec("demo/llama-70b", 70.6e9, 80, 8192, 8, 128)


@dataclass(slots=True)
class Work:
    """What was done, summed over steps; GPU figures are of one GPU of the engine.

    `sm_active_s` weighs busy time by the share of SMs that have a warp resident,
    `occupancy_s` by the share of warp slots in use.
    """

    elapsed_s: float = 0.0
    busy_s: float = 0.0
    sm_active_s: float = 0.0
    occupancy_s: float = 0.0
    host_s: float = 0.0
    dram_bytes: float = 0.0
    flop: float = 0.0
    nvlink_bytes: float = 0.0
    steps: float = 0.0
    prefill_tokens: float = 0.0
    decode_tokens: float = 0.0

    def add(self, other: Work, share: float = 1.0) -> None:
        """Adds `share` of `other` to this sum."""
        # Field by field: a minute of it is simulated before anything is seen.
        self.elapsed_s += share * other.elapsed_s
        self.busy_s += share * other.busy_s
        self.sm_active_s += share * other.sm_active_s
        self.occupancy_s += share * other.occupancy_s
        self.host_s += share * other.host_s
        self.dram_bytes += share * other.dram_bytes
        self.flop += share * other.flop
        self.nvlink_bytes += share * other.nvlink_bytes
        self.steps += share * other.steps
        self.prefill_tokens += share * other.prefill_tokens
        self.decode_tokens += share * other.decode_tokens

    def since(self, earlier: Work) -> Work:
        """What was done between `earlier` and now."""
        # Field by field, as above.
        return Work(
            elapsed_s=self.elapsed_s - earlier.elapsed_s,
            busy_s=self.busy_s - earlier.busy_s,
            sm_active_s=self.sm_active_s - earlier.sm_active_s,
            occupancy_s=self.occupancy_s - earlier.occupancy_s,
            host_s=self.host_s - earlier.host_s,
            dram_bytes=self.dram_bytes - earlier.dram_bytes,
            flop=self.flop - earlier.flop,
            nvlink_bytes=self.nvlink_bytes - earlier.nvlink_bytes,
            steps=self.steps - earlier.steps,
            prefill_tokens=self.prefill_tokens - earlier.prefill_tokens,
            decode_tokens=self.decode_tokens - earlier.decode_tokens,
        )

    def spin(self, seconds: float) -> None:
        """Adds kernels that wait for another GPU: few SMs hold them, and no data moves."""
        self.elapsed_s += seconds
        self.busy_s += seconds
        self.sm_active_s += _SPINNING_SMS * seconds
        self.occupancy_s += 0.1 * _SPINNING_SMS * seconds


@dataclass(frozen=True, slots=True)
class StepCost:
    """Prices the steps of one model on `tp` GPUs."""

    model: ModelSpec
    gpu: GpuSpec
    tp: int = 1

    def step(self, decodes: int, context_tokens: int, prefills: Sequence[tuple[int, int]], verified: int = 1) -> Work:
        """The work of one step; `elapsed_s` is its length in seconds.

        Args:
            decodes: requests that decode.
            verified: tokens that the model computes for each of those: one, and those drafted.
            context_tokens: KV tokens that those requests attend to, summed.
            prefills: per prompt chunk, its tokens and the tokens already in the cache before it.
        """
        model, gpu, tp = self.model, self.gpu, self.tp
        chunk_tokens = sum(chunk for chunk, _ in prefills)
        tokens = decodes * verified + chunk_tokens
        bandwidth = gpu.hbm_bytes_per_s * _BANDWIDTH_REACHED

        gemm_flop = 2 * model.params * tokens / tp
        weights = model.weight_bytes / tp
        weights_s = weights / bandwidth
        gemm_s = gemm_flop / (gpu.bf16_flop_per_s * _GEMM_REACHED)
        kv_bytes = context_tokens * model.kv_bytes_per_token / tp
        kv_s = kv_bytes / bandwidth
        pairs = sum(chunk * (before + chunk / 2) for chunk, before in prefills)
        attention_flop = 4 * model.layers * model.hidden * pairs / tp
        attention_s = attention_flop / (gpu.bf16_flop_per_s * _PREFILL_ATTENTION_REACHED)
        link_bytes, link_s = self._all_reduce(tokens)

        seqs = decodes + len(prefills)
        matmul_s = max(weights_s, gemm_s)
        busy_s = matmul_s + kv_s + attention_s + link_s
        compute_s = min(gemm_s, matmul_s) + attention_s
        memory_s = busy_s - link_s - compute_s
        return Work(
            elapsed_s=busy_s + _HOST_GAP_S + _HOST_GAP_PER_SEQ_S * seqs,
            busy_s=busy_s,
            sm_active_s=0.97 * compute_s + 0.82 * memory_s + 0.3 * link_s,
            occupancy_s=0.17 * compute_s + 0.21 * memory_s + 0.05 * link_s,
            host_s=_HOST_STEP_S + _HOST_STEP_PER_SEQ_S * seqs,
            dram_bytes=weights + kv_bytes + tokens * model.kv_bytes_per_token / tp,
            flop=gemm_flop + attention_flop,
            nvlink_bytes=link_bytes,
            steps=1.0,
            prefill_tokens=float(chunk_tokens),
            decode_tokens=float(decodes),
        )

    def _all_reduce(self, tokens: int) -> tuple[float, float]:
        """Bytes that one GPU sends, and seconds, of the two all-reduces of every layer."""
        if self.tp == 1:
            return 0.0, 0.0
        count = 2 * self.model.layers
        ring_share = 2 * (self.tp - 1) / self.tp
        sent = count * ring_share * tokens * self.model.hidden * _BF16_BYTES
        return sent, count * _ALL_REDUCE_LATENCY_S + sent / self.gpu.nvlink_bytes_per_s
