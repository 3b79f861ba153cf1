"""Short names and families of kernels, by the names that real captures hold."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.timeline.model import Kind
from gputop_llm.verdict.kernel_names import Family, family_of, short_name
from tests.support import recorded

_MUL = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<"
    "c10::BFloat16, c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float> > >(at::TensorIter"
    "atorBase&, at::native::BinaryFunctor<float> const&)::{lambda(int)#1}>(int, at::native::gpu_kernel_impl<int>)"
)
_SILU_NSYS = (
    "void at::native::vectorized_elementwise_kernel<(int)8, at::native::<unnamed>::silu_kernel(at::TensorIter &)"
    "::[lambda() (instance 1)]::operator ()() const::[lambda(c10::BFloat16) (instance 1)], std::array<char *, "
    "(unsigned long)2>>(int, T2, T3)"
)
_SILU_KINETO = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::(anonymous namespace)::silu_kernel(at::TensorIter"
    "Base&)::{lambda()#1}::operator()() const::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >(int, T2, T3)"
)
_FLASH = (
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwd<2,"
    "cute::tuple<cute::C<1> > > > > >(flash::Params)"
)


@pytest.mark.parametrize(
    ("name", "short", "family"),
    [
        (_MUL, "elementwise_kernel: mul", Family.ELEMENTWISE),
        (_SILU_NSYS, "vectorized_elementwise_kernel: silu", Family.ACTIVATION),
        (_SILU_KINETO, "vectorized_elementwise_kernel: silu", Family.ACTIVATION),
        (_FLASH, "flash::FlashAttnFwdSm90", Family.ATTENTION),
        ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT",) * 2 + (Family.GEMM,),
        (
            "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1>(cutlass_80_tensorop::Params)",
            "cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1",
            Family.GEMM,
        ),
        (
            "void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, float>(cublasLt::cublasSplitKParams<T6>)",
            "cublasLt::splitKreduce_kernel",
            Family.GEMM,
        ),
        (
            "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, (vllm::Fp8KVCacheDataType)0>(long const*, int)",
            "vllm::reshape_and_cache_flash_kernel",
            Family.KV_WRITE,
        ),
        ("triton_red_fused_fused_add_rms_norm_2",) * 2 + (Family.NORM,),
        ("triton_poi_fused_mul_silu_slice_1",) * 2 + (Family.ACTIVATION,),
        ("triton_poi_fused_3",) * 2 + (Family.ELEMENTWISE,),
        ("_gumbel_sample_kernel",) * 2 + (Family.SAMPLING,),
        ("_gather_block_tables_kernel",) * 2 + (Family.INPUTS,),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu",) * 2 + (Family.MOE_GEMM,),
        ("_topk_forward",) * 2 + (Family.MOE_DISPATCH,),
        ("_combined_routing_memset",) * 2 + (Family.MOE_DISPATCH,),
        ("kernel_unified_attention_3d",) * 2 + (Family.ATTENTION,),
        (
            "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*)",
            "vllm::rotary_embedding_kernel",
            Family.ROPE,
        ),
        # Kineto cuts long names, or leaves them as they are.
        (
            "_ZN7cutlass13device_kernelIN5flash20enable_sm90_or_laterINS1_16FlashAttnFwdSm90INS1_25CollectiveMain",
            "cutlass::flash",
            Family.ATTENTION,
        ),
        (
            "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalINS1_17GroupProblemShapeIN4cute5tupleI",
            "cutlass::gemm",
            Family.MOE_GEMM,
        ),
        (
            "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_",
            "vectorized_elementwise_kernel: add",
            Family.ELEMENTWISE,
        ),
        ("_ZN2at6native6kernelE", "kernel", Family.OTHER),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rms", "ck_tile::Rmsnorm2dFwd", Family.NORM),
        (
            "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
            "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t",
            Family.NCCL,
        ),
        (
            "void vllm::cross_device_reduce_1stage<__half, 2>(vllm::RankData*)",
            "vllm::cross_device_reduce_1stage",
            Family.NCCL,
        ),
        ("void vllm::moe::topkGatingSoftmax<4, 64>(float const*)", "vllm::moe::topkGatingSoftmax", Family.MOE_DISPATCH),
        (
            "fbgemm_gpu::permute_2D_lengths_kernel<int>(int)",
            "fbgemm_gpu::permute_2D_lengths_kernel",
            Family.ELEMENTWISE,
        ),
        (
            "void vllm::dynamic_scaled_fp8_quant_kernel<float>(int)",
            "vllm::dynamic_scaled_fp8_quant_kernel",
            Family.QUANT,
        ),
        ("memcpy32_post",) * 2 + (Family.COPY,),
        ("add_one(const float *, float *, int)", "add_one", Family.OTHER),
        ("CUDA graph 2734", "CUDA graph 2734", Family.OTHER),
        ("", "", Family.OTHER),
    ],
)
def test_real_names_are_said_short_and_belong_to_a_family(name, short, family):
    assert (short_name(name), family_of(name)) == (short, family)


@pytest.mark.parametrize(
    ("family", "names"),
    [
        (Family.NORM, ["void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(int)", "l2norm_fwd_kernel"]),
        (
            Family.SAMPLING,
            ["void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u, float>(int)", "_temperature_kernel"],
        ),
        (Family.ROPE, ["flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheEnhancedKernel<false, 128u>(int)"]),
        (
            Family.KV_WRITE,
            ["void flashinfer::AppendPagedKVCacheKernel<128u>(int)", "void k_set_rows<float, long, __half>(int)"],
        ),
        (
            Family.ACTIVATION,
            [
                "void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu>(int)",
                "void tensorrt_llm::kernels::cutlass_kernels::doActivationKernel<float>(int)",
                "void unary_gated_op_kernel<op_silu, float>(int)",
            ],
        ),
        (
            Family.ATTENTION,
            [
                "void flashinfer::BatchPrefillWithRaggedKVCacheKernel<flashinfer::KernelTraits<0> >(int)",
                "void flashinfer::PersistentVariableLengthMergeStatesKernel<8u, 16u>(int)",
                "void flashinfer::PersistentKernelTemplate<flashinfer::BlockBatchPagedAttentionPersistent<"
                "flashinfer::KernelTraits<0>, flashinfer::Params> >(flashinfer::Params, flashinfer::Params)",
                "void flashinfer::BlockSparseIndicesToVectorSparseOffsetsKernel<int, 1024>(int*)",
                "void deep_gemm::sm90_fp8_paged_mqa_logits<64u>(int)",
                "void vllm::topKPerRowDecode<1024, true, false, true>(float const*)",
                "_fwd_kernel",
                "reduce_segments",
                "pa_decode_ps_reduce_hip_kernel",
                "void sglang::topk_main_kernel<true, 3>(sglang::TopKPagedParams)",
                "get_mla_metadata_kernel(int)",
            ],
        ),
        (
            Family.SSM,
            [
                "_causal_conv1d_update_kernel",
                "fused_sigmoid_gating_delta_rule_update_kernel",
                "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
                "void selective_scan_fwd_kernel<int>(int)",
                "_chunk_scan_fwd_kernel",
            ],
        ),
        (
            Family.NCCL,
            [
                "void nvshmemi_reduce_kernel<float>(int)",
                "multimem_one_shot_reduce_kernel",
                "void aiter::allgather_vec<float>(int)",
                "barrier_all_on_stream_kernel()",
            ],
        ),
        (
            Family.MOE_GEMM,
            [
                "bmm_E2m1_E2m1E2m1_Fp32_Ab16_Bb16_Cb16_t128x8x512_s5_et128x8_m128x8x64_c1x1x1_rM_TN_dynB_sm100f",
                "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<"
                "cute::tuple<int, int, int> > > >(int)",
                "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 132u, (deep_gemm::GemmType)1>(int)",
                "aiter::fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_32x256",
                "batched_triton_kernel",
                "void w4a16_moe_sm90_kernel<Trait<32> >(Params)",
                "mfma_moe1_silu_mul_afp4_wfp4_bf16_t32x128x256_pm1_async_v32",
            ],
        ),
        (Family.MOE_DISPATCH, ["_fwd_kernel_ep_gather", "void biased_grouped_topk_kernel<float>(int)"]),
        (
            Family.GEMM,
            [
                "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 132u, (deep_gemm::GemmType)0>(int)",
                "triton_tem_fused_mm_0",
                "triton_tem_fused__to_copy_addmm_gelu_t_view_9",
                "void mul_mat_vec_q<(ggml_type)12, 1, false, false>(int)",
                "_lora_shrink_kernel",
                "void wvSplitK_hf_sml_<__hip_bfloat16, 64>(int)",
                "Custom_Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT16x16x512_MI16x16x1",
            ],
        ),
        (Family.ELEMENTWISE, ["triton_poi_fused_all_reduce_lift_fresh_0", "triton_poi_fused__scaled_mm_1"]),
        (Family.OTHER, ["void at::native::(anonymous namespace)::upsample_bicubic2d_out_frame<float>(int)"]),
    ],
    ids=lambda value: value.name if isinstance(value, Family) else "",
)
def test_the_kernels_of_todays_engines_are_not_taken_for_what_their_library_is_called(family, names):
    assert {name: family_of(name) for name in names} == dict.fromkeys(names, family)


def _families(name: str) -> dict[Family, float]:
    """Work of kernels by family, in percent of all kernels."""
    timeline = recorded.timeline(name)
    ops = timeline.ops
    kernels = ops.kind == Kind.KERNEL
    work = np.bincount(ops.name_id[kernels], weights=(ops.end - ops.start)[kernels])
    found: dict[Family, float] = {}
    for name_id in np.flatnonzero(work):
        family = family_of(timeline.name(int(name_id)))
        found[family] = found.get(family, 0.0) + 100 * work[name_id] / work.sum()
    return found


@pytest.mark.parametrize("name", [n for n in recorded.WITH_KERNELS if n not in (recorded.TINY_GRAPHS,)])
def test_hardly_any_time_of_a_real_capture_is_in_kernels_that_nobody_knows(name):
    assert _families(name).get(Family.OTHER, 0.0) < 1.0


def test_both_demanglers_give_the_same_short_names():
    def names(capture):
        timeline = recorded.timeline(capture)
        kernels = timeline.ops.kind == Kind.KERNEL
        return {short_name(timeline.name(int(i))) for i in np.unique(timeline.ops.name_id[kernels])}

    assert names(recorded.EAGER) == names(recorded.EAGER_KINETO)


def test_the_families_of_published_captures_are_those_of_their_index():
    training, qwen, decode = (_families(n) for n in (recorded.TRAINING, recorded.QWEN, recorded.AMD_DECODE))
    assert training[Family.NCCL] == pytest.approx(47, abs=1)
    assert qwen[Family.GEMM] == pytest.approx(28, abs=0.5)
    assert decode[Family.MOE_GEMM] == pytest.approx(66, abs=1)


@given(st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from("<>():, _Z12"), max_size=300))
def test_no_name_breaks_it_and_what_comes_back_is_short(name):
    assert len(short_name(name)) <= 90
    assert isinstance(family_of(name), Family)


@pytest.mark.parametrize("piece", ["a", "a_", "Cijk_A_", "<", "f<", "void ", "1", "_Z1", "elementwise<a_kernel", "(("])
def test_a_hostile_name_costs_no_seconds(piece):
    began = time.process_time()
    family_of(piece * 100_000)
    family_of("elementwise_kernel<" + piece * 100_000)
    assert time.process_time() - began < 2


def test_hostile_numbers_before_a_wrapped_kernel_cost_no_seconds():
    began = time.process_time()
    for i in range(200):
        family_of(f"ck_tile::kentry<{i}" + "1" * 3_000)
    assert time.process_time() - began < 2
