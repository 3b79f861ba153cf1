"""Kernel names as an engineer says them, and the family that each belongs to.

Works on what both demanglers write: nsys `f<(int)128, <unnamed>::g>(T1)` and Kineto `f<128, (anonymous
namespace)::g>(int)` give the same short name. Everything here is by name alone; the tables are all there is to extend.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache

from gputop_llm.timeline.demangle import demangled


class Family(Enum):
    """What a kernel is for. The value is what the reader sees."""

    GEMM = "GEMM"
    ATTENTION = "attention"
    SSM = "SSM/linear attention"
    KV_WRITE = "KV write"
    NORM = "norm"
    ROPE = "rope"
    ACTIVATION = "activation"
    SAMPLING = "sampling/logits"
    QUANT = "quant/dequant"
    MOE_GEMM = "MoE GEMM"
    MOE_DISPATCH = "MoE dispatch"
    NCCL = "NCCL"
    INPUTS = "step inputs"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    COPY = "copy"
    MEMSET = "memset"
    GRAPH = "opaque graph replay"
    OTHER = "other"


# The first that matches the short name decides, so the narrower ones stand before the wider.
_FAMILIES: tuple[tuple[Family, re.Pattern[str]], ...] = tuple(
    (family, re.compile(pattern, re.IGNORECASE))
    for family, pattern in (
        # What torch.compile fuses is named after the operators around it, which are none of its work.
        (Family.GEMM, r"^triton_tem_(?!\w*attention)\w*mm_"),
        (
            Family.NCCL,
            r"^(nccl|rccl|msccl|nvshmem)|^(?!triton_(poi|red|per)_).*(cross_device_reduce|all_?reduce|all_?gather_(kernel|vec)"
            r"|reduce_?scatter_kernel|multimem_)|barrier_(all_)?on_stream",
        ),
        (
            Family.MOE_GEMM,
            r"matmul_ogs|fused_moe_(lora_)?kernel|fused_moe::run_global|fmoe|mfma_moe\d|w\da\d+_moe|gemm_moe|moe_\w*gemm|moe\w*::\w*gemm|group(ed)?_?gemm"
            r"|GemmGrouped|moe_wna16|marlin_moe|^moe_(vec_)?q\d|^batched_triton_kernel"
            # The batched GEMMs that TensorRT-LLM ships ready-made, by the form of their numbers.
            r"|^bmm_(Mx)?(E\dm\d|B?float16|Bf16|Fp16)\w*_Fp32_",
        ),
        (
            Family.MOE_DISPATCH,
            r"moe|expert|^_(combined_routing|topk_forward|sum_bitmatrix|finalize_matmul_scatter|reduce_grouped)"
            r"|topk_(gating|softmax)|grouped_?topk|deepseek_v3_topk|deep_?ep|routing|_ep_(scatter|gather)|expandInputRows|computeStridesTma",
        ),
        (
            Family.KV_WRITE,
            r"reshape_and_cache|concat_and_cache|append_?paged_?kv|^k_set_rows|(store|set|write|save|copy)_(kv|cache|mla)|kv_?cache_?"
            r"(write|store|update|copy)|indexer_k_quant_and_cache",
        ),
        # vLLM's model runner: what it prepares and writes back around each step.
        (
            Family.INPUTS,
            r"^_(gather_block_tables|compute_slot_mappings|prepare_(pos|prefill|decode|inputs|dummy)\w*"
            r"|combine_sampled_and_draft|get_num_sampled|post_update|apply_write|apply_grammar|update_request)"
            r"|write_req_to_token|get_last_loc|create_(flashinfer|flashmla|extend)\w*_(kv_)?indices|assign_req_to_token"
            r"|compute_position_kernel|alloc_(decode|extend)_kernel",
        ),
        # Mamba, gated delta nets and their like: what such layers have in the place of attention.
        (
            Family.SSM,
            r"selective_(scan|state)|causal_conv1d|mamba|ssm_(conv|scan)|_chunk_(scan|state|cumsum)|_state_passing"
            r"|_bmm_chunk|delta_(rule|net)|chunk_(fwd_kernel_o|scaled_dot_kkt|local_cumsum)|recompute_w_u|solve_tril"
            r"|merge_16x16|_gdn_|linear_attn",
        ),
        # An indexer's scores (mqa_logits) and its choice of keys are part of sparse attention; all of FlashInfer's
        # kernels have "flash" in their names.
        (
            Family.ATTENTION,
            r"flash(?!infer)|fmha|attn|attention|sdpa|paged_?kv|WithKVCache|(\b|_)mla(_|\b)|mha_|prepare_varlen_num_blocks"
            r"|PersistentKernelTemplate|BlockSparseIndices"
            r"|merge_?state|\bpa_(decode|prefill|bf16|fp8)|_fwd_grouped_kernel_stage|_fwd_kernel_stage|^_fwd_kernel(_unified|_alibi)?$|ragged_?kv"
            r"|^reduce_segments|mqa_logits|topK_?Per_?Row|topk_(transform|main_kernel)",
        ),
        (
            Family.NORM,
            r"rms_?norm|layer_?norm|l2_?norm|qk_?norm(?!_?rope)|group_?norm|norm2d|batch_?norm|rsqrt_mean|mean\w*_rsqrt|vectorized_layer_norm"
            r"|^(\w*_)?norm(_kernel)?$",
        ),
        (Family.ROPE, r"rotary|rope(_|\b|d|q|k)"),
        (
            Family.SAMPLING,
            r"(?<!up)(?<!down)(?<!grid_)sampl|gumbel|arg_?max|top_?[kp]\b|top_?[kp](_|sampl|mask)|gatherTopK|RadixFindKthValues|multinomial|penalt"
            r"|logit|log_?softmax|min_p(_|\b)|bitmask|exponential|^_temperature_kernel",
        ),
        (
            Family.QUANT,
            r"quant|scaled_fp[48]|dequant|fp8_convert|cvt_fp\w+_to_fp|per_token_group|compute_scale|transform_sf_|ue8m0",
        ),
        (Family.ACTIVATION, r"silu|gelu|swiglu|swish|relu|act_and_mul|sigmoid|tanh|doActivation|unary_gated_op"),
        (Family.ELEMENTWISE, r"^triton_poi_"),
        (Family.REDUCTION, r"^triton_(red|per)_"),
        (
            Family.GEMM,
            r"nvjet|(?<!fb)gemm|gemv|cublas|cutlass(?!_kernels::)|xmma|^(Custom_)?Cijk_|mul_?mat|matmul|marlin|machete|splitKreduce|scaled_mm|convolve|conv\d?d"
            r"|implicit_conv|_dgrad|_wgrad|triton_(\w+_)?(mm|bmm)\b|^dot_kernel|::dot_kernel"
            r"|wvSplitK|_lora_|[bs]gmv",
        ),
        (Family.COPY, r"^memcpy\d|^__amd_rocclr_copy|^MEMCPY|memcpy\d*_post"),
        (Family.MEMSET, r"^memset\d|^__amd_rocclr_fill"),
        (
            Family.REDUCTION,
            r"reduce|soft_?max|scan|sort|cumsum|histogram|unique|segment",
        ),
        (
            Family.ELEMENTWISE,
            r"elementwise|CatArray|fill|copy|index|gather|scatter|embedding|permute|multi_tensor_apply"
            r"|where|arange|^triton__|^k_(bin_bcast|get_rows)|^cpy_|^convert_unary|^unary_op_kernel",
        ),
    )
)

#: Kernels that do what one of their template arguments says: the wrapper alone tells nothing.
_OF_AN_OPERATION = re.compile(r"elementwise|reduce_kernel$|^index_|scatter_gather|multi_tensor_apply")
_OPERATIONS: tuple[re.Pattern[str], ...] = tuple(
    re.compile(pattern)
    for pattern in (
        r"\b(?:launch_)?(?!gpu_|_cuda_scatter)(\w+?)_kernel(?:_cuda|_impl)(?=[(<])",
        r"\b(silu|gelu|relu|leaky_relu|mish|hardswish|hardtanh|threshold|elu|softplus)_kernel\(",
        r"\blaunch_(\w+?)(?:_kernel)?\(",
        r"\b(\w+?)_cuda_out\(",
        r"\b(?:CUDA)?Functor(?:OnSelf|OnOther)?_(\w+?)\b",
        r"\bCUDAFunctor(?:OnSelf|OnOther)?_(\w+?)<",
        r"binary_internal::(\w+?)Functor\b",
        r"\b(?!func_wrapper|BinaryFunctor|AUnaryFunctor|BUnaryFunctor|UnaryFunctor)(\w+?)(?:Functor|Ops)<",
        r"\b(\w+?)_functor<",
        r"::Tensor(Assign|Add|Reduce\w+)\b",
        r"templates::cuda::(\w+?)_kernel<",
    )
)
#: Template arguments by which a GEMM is one of several problems of different sizes, as experts have them.
_GROUPED = re.compile(r"(Group|MoE)ProblemShape|\(deep_gemm::GemmType\)[1235]\b")
#: Kernels whose first template argument is the kernel.
_WRAPPERS = re.compile(r"^cutlass::(device_kernel|Kernel\d?|KernelSm\d+)$|^kentry$|^ck_tile::kentry$")
_NUMBER_FIRST = re.compile(r"^\s*\d\w*,\s*")
_MANGLED_WRAPPERS = re.compile(r"kentry$|device_kernel$|Kernel\d?$|enable_")
_GUARDS = re.compile(r"(^|::)enable_\w+$|^fixup$")
#: Namespaces that say nothing to a reader.
_DULL = re.compile(
    r"^(at|native|detail|details|internal|impl|kernel|kernels|c10|cuda|std|__\w+|CUB_\w+|THRUST_\w+|_V\d+|cuda_cub|core"
    r"|collective|threadblock|device|sm\d+)$"
)
_NSYS_CAST = re.compile(r"\((?:unsigned )?(?:int|bool|long|short|char|long long)\)(?=-?\d)")
_LAMBDA = re.compile(r"\[lambda\(([^\[\]]*)\) \(instance (\d+)\)\]")
#: A graph replay that was recorded whole: no kernel, and without "CUDA graph" it would be a bare number.
_REPLAY = re.compile(r"CUDA graph \d+$")
_MANGLED = re.compile(r"^_Z\w+$")
_CIJK = re.compile(r"^(Cijk_[A-Z][a-z]+_[A-Z][a-z]+_\w+?)_(?:Bias|HA|UserArgs|GA)\w*?_(MT\d+x\d+x\d+)")
_LONGEST = 90
#: Names are read up to here: what tells stands in front, and a hostile name must not cost seconds.
_READ = 3000


@lru_cache(maxsize=65536)
def short_name(name: str) -> str:
    """The name without arguments, template arguments and dull namespaces; an operation stands behind a colon."""
    plain = name.strip()[:_READ]
    if _REPLAY.match(plain):
        return plain
    if _MANGLED.match(plain):
        whole = demangled(plain)
        if whole == plain:
            return _cut(_of_mangled(plain))
        plain = whole
    plain = plain.replace("(anonymous namespace)::", "").replace("<unnamed>::", "").replace("operator ()", "operator()")
    plain = _LAMBDA.sub(r"{lambda(\1)#\2}", _NSYS_CAST.sub("", plain))
    base, arguments = _base(plain)
    base = _namespaces(base)
    for _ in range(4):
        if not (arguments and (_WRAPPERS.match(base) or _GUARDS.search(base))):
            break
        inner, arguments = _base(_NUMBER_FIRST.sub("", arguments))
        base = _namespaces(inner)
    if match := _CIJK.match(base):
        base = f"{match[1]}_{match[2]}"
    if _OF_AN_OPERATION.search(base) and (operation := _operation(arguments or plain[len(base) :])):
        return _cut(f"{base}: {operation}")
    return _cut(base)


@lru_cache(maxsize=65536)
def family_of(name: str) -> Family:
    """The family of a kernel by its full name."""
    short = short_name(name)
    for family, pattern in _FAMILIES:
        if pattern.search(short):
            return Family.MOE_GEMM if family is Family.GEMM and _GROUPED.search(name[:_READ]) else family
    return Family.OTHER


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _base(text: str) -> tuple[str, str]:
    """The qualified name that a signature begins with, and its template arguments without the brackets."""
    depth = 0
    begin = None
    last_space = 0
    for position, char in enumerate(text):
        if char == "<":
            if depth == 0:
                begin = position
            depth += 1
        elif char == ">" and depth:
            depth -= 1
            rest = text[position + 1 :]
            if depth == 0 and begin is not None and not rest.startswith("::"):
                return text[last_space:begin], text[begin + 1 : position]
        elif depth == 0 and char == "(":
            return text[last_space:position], ""
        elif depth == 0 and char == " ":
            last_space = position + 1
        elif depth == 0 and char == ",":
            return text[last_space:position], ""
    # Cut off in the middle of the template arguments.
    return (text[last_space:begin], text[begin + 1 :]) if begin is not None else (text[last_space:], "")


def _namespaces(qualified: str) -> str:
    plain, depth = [], 0
    for char in qualified:
        depth += (char == "<") - (char == ">")
        if depth == 0 and char != ">":
            plain.append(char)
    parts = [part for part in "".join(plain).split("::") if part]
    if not parts:
        return qualified
    said = [part for part in parts[:-1] if not _DULL.match(part)]
    return "::".join([*said[:2], parts[-1]])


def _operation(arguments: str) -> str | None:
    for pattern in _OPERATIONS:
        if match := pattern.search(arguments):
            found = match[1].removesuffix("_kernel").removesuffix("_scalar_tensor")
            return found[0].lower() + found[1:] if found[:1].isupper() else found
    return None


def _of_mangled(name: str) -> str:
    """A readable part of a name that the recorder could not demangle: its first identifiers."""
    found: list[str] = []
    position = 2
    while position < len(name) and len(found) < 6:
        digits = re.match(r"\d+", name[position:])
        if digits is None:
            position += 1
            continue
        length = int(digits[0])
        position += len(digits[0])
        word = name[position : position + length]
        if length > 1 and len(word) == length and not word.isdigit():
            found.append(word)
        position += length
    if not found:
        return name
    known = [word for word in found if not _DULL.match(word)]
    named = next((word for word in known[1:] if not _MANGLED_WRAPPERS.match(word)), None)
    return f"{known[0]}::{named}" if named else (known or found)[0]
