"""What one step of a language model reads and multiplies, from its shape and how it is split over GPUs. Pure.

Norms and biases are left out: together under 0.1 % of any model's parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Use(Enum):
    """What a step does with a matrix."""

    READ = "read whole, once a step"
    LOOKUP = "a row per token: not read whole, nothing multiplied"
    EXPERTS = "only the experts that a token of the batch goes to"
    HEAD = "read whole, multiplied once per token that comes out, not per prompt token"


@dataclass(frozen=True, slots=True)
class Matrices:
    """Weights that are stored, split and read alike; over all layers.

    Args:
        bytes: stored size, with the scales of quantised weights.
        ways: into how many different parts they can be split; GPUs beyond that hold copies.
    """

    name: str
    params: int
    bytes: float
    ways: int
    use: Use = Use.READ


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: `per_token` of `total` are chosen in each of `layers` layers; `shared` ones always run."""

    total: int
    per_token: int
    shared: int
    intermediate: int
    layers: int


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention (DeepSeek): one compressed vector per token instead of keys and values."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The decoder of a model.

    `windows` are pairs of how many tokens back a layer attends (None: all) and how many layers do so. `dtype` is what
    isn't quantised ("bf16", "fp16", "fp32"), `multiplies_in` the data type of the bulk of the multiplications where
    the GPU has it, `quantisation` says how weights are stored. `kv_bytes_auto` is the size of one KV value if the
    engine was told nothing; `gated` MLPs have three matrices, others two. `notes` say what isn't in the shape (a
    vision tower).
    """

    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    dtype: str
    windows: tuple[tuple[int | None, int], ...]
    matrices: tuple[Matrices, ...]
    experts: Experts | None = None
    mla: Mla | None = None
    quantisation: str = "none"
    multiplies_in: str = "bf16"
    kv_bytes_auto: float = 2.0
    gated: bool = True
    notes: tuple[str, ...] = ()

    @property
    def params(self) -> int:
        """All parameters."""
        return sum(m.params for m in self.matrices)

    @property
    def active_params(self) -> float:
        """Parameters that one token uses, with embedding and LM head, as model cards count them."""
        return sum(m.params * self._chosen(m) for m in self.matrices)

    @property
    def params_per_prompt_token(self) -> float:
        """Parameters that one prompt token is multiplied with: no embedding (a lookup), no LM head (once a prompt)."""
        return sum(m.params * self._chosen(m) for m in self.matrices if m.use in (Use.READ, Use.EXPERTS))

    def _chosen(self, matrices: Matrices) -> float:
        if matrices.use is Use.EXPERTS and self.experts is not None:
            return self.experts.per_token / self.experts.total
        return 1.0


@dataclass(frozen=True, slots=True)
class Parallel:
    """How an engine is split over GPUs.

    `tp` GPUs share each matrix, `pp` stages share the layers, and `dp` ranks each have requests of their own.
    Experts are spread over `expert_gpus` GPUs of a stage, whose ranks then work on one batch in the expert layers.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    expert_gpus: int = 1

    @property
    def gpus_per_rank(self) -> int:
        """GPUs that work for one data-parallel rank."""
        return self.tp * self.pp

    @property
    def ranks_per_expert_batch(self) -> int:
        """Data-parallel ranks whose tokens meet in one layer of experts."""
        return max(1, self.expert_gpus // self.tp)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that an engine serves, as far as it is known.

    `problem` says why there is no `shape`; `parallel` may be known without one. `path` is where the config.json
    was read, as the engine sees it, `kv_dtype` the engine's --kv-cache-dtype.
    """

    shape: ModelShape | None = None
    parallel: Parallel | None = None
    problem: str | None = None
    path: str | None = None
    kv_dtype: str | None = None
    notes: tuple[str, ...] = ()

    def without_shape(self, problem: str) -> ServedModel:
        """The same with the reason why there is no shape."""
        return replace(self, problem=problem)

    def with_shape(self, shape: ModelShape, path: str) -> ServedModel:
        """The same with its shape and where that came from."""
        return replace(self, shape=shape, path=path)


def experts_touched(experts: Experts, tokens: float) -> float:
    """How many of a layer's experts a batch of `tokens` is expected to use: E x (1 - (1 - k/E)^tokens).

    Each token chooses k of E; that they choose evenly and independently is an assumption, skew touches fewer.
    """
    return experts.total * float(1.0 - (1.0 - experts.per_token / experts.total) ** tokens)


def held_bytes(matrices: Matrices, parallel: Parallel, bytes_per_param: float | None = None) -> float:
    """Bytes of these weights on one GPU, all pipeline stages together."""
    size = matrices.bytes if bytes_per_param is None else matrices.params * bytes_per_param
    return size / (parallel.expert_gpus if matrices.use is Use.EXPERTS else min(parallel.tp, matrices.ways))


def weight_bytes_per_step(
    shape: ModelShape, parallel: Parallel, batch_tokens: float, bytes_per_param: float | None = None
) -> float:
    """Bytes of weights that one GPU reads in one step, on the pipeline stage that reads most.

    The embedding is a lookup and not read whole; the LM head is read by the last stage. Of experts, those that
    the batch is expected to touch, spread evenly over the GPUs that hold them.

    Args:
        batch_tokens: tokens in one step of one data-parallel rank.
        bytes_per_param: instead of what the shape says.
    """
    body = head = 0.0
    for matrices in shape.matrices:
        size = held_bytes(matrices, parallel, bytes_per_param)
        if matrices.use is Use.HEAD:
            head += size
        elif matrices.use is Use.READ:
            body += size
        elif matrices.use is Use.EXPERTS and shape.experts is not None:
            touched = experts_touched(shape.experts, batch_tokens * parallel.ranks_per_expert_batch)
            body += size * touched / shape.experts.total
    most, fewest = stage_share(shape, parallel), (shape.layers // parallel.pp) / shape.layers
    return body + head if parallel.pp == 1 else max(body * most, body * fewest + head)


def stage_share(shape: ModelShape, parallel: Parallel) -> float:
    """The share of the layers that the largest pipeline stage has."""
    return -(-shape.layers // parallel.pp) / shape.layers


def kv_values_per_token_and_layer(shape: ModelShape, parallel: Parallel) -> float:
    """Numbers that one GPU keeps per token and layer.

    Keys and values of its share of the KV heads, at least one head; with latent attention the compressed vector,
    of which every GPU of a tensor-parallel group has a copy.
    """
    if shape.mla is not None:
        return shape.mla.kv_lora_rank + shape.mla.qk_rope_head_dim
    return 2 * shape.head_dim * shape.kv_heads / min(parallel.tp, shape.kv_heads)


def kv_bytes_per_token(shape: ModelShape, parallel: Parallel, value_bytes: float) -> float:
    """KV bytes of one token in all layers, on one GPU of each pipeline stage together."""
    return shape.layers * kv_values_per_token_and_layer(shape, parallel) * value_bytes


def kv_bytes_read(
    shape: ModelShape, parallel: Parallel, value_bytes: float, held_tokens: float, sequences: float
) -> float:
    """KV bytes of running sequences in all layers, on one GPU of each pipeline stage together.

    Layers with a window read no more than it of each sequence; sequences are taken as equally long.

    Args:
        held_tokens: tokens of all running sequences.
        sequences: how many these are.
    """
    per_layer = kv_values_per_token_and_layer(shape, parallel) * value_bytes
    tokens = 0.0
    for window, layers in shape.windows:
        tokens += layers * (held_tokens if window is None else min(held_tokens, window * sequences))
    return per_layer * tokens


def layers_per_block(shape: ModelShape) -> int | None:
    """Layers that one block of vLLM's KV pool serves; None where its releases differ.

    Where some layers have a window and others another or none, vLLM divides the layers of each kind into
    groups of equal size, the size of the smallest kind (of the largest if that is hardly larger: by a
    quarter or a half, depending on the release), and gives each group blocks of its own.
    """
    counts = [layers for _, layers in shape.windows]
    smallest, largest = min(counts), max(counts)
    if largest < smallest * 1.25:
        return largest
    return None if largest < smallest * 1.5 else smallest
