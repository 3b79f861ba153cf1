// Kernels whose limit is known, each launched six times: `known_causes NAME`. Built by test_ncu_gpu.py.
#include <cstdio>
#include <cstring>
#include <cuda_bf16.h>
#include <mma.h>

namespace {

constexpr int kThreads = 256;
constexpr size_t kBig = size_t{1} << 28;      // floats: 1 GiB, far more than any L2
constexpr size_t kSmall = size_t{1} << 21;    // floats: 8 MiB, fits into L2 and not into L1
constexpr int kSide = 2048;

// Every byte comes from DRAM and goes there.
__global__ void copy_dram(const float4* from, float4* to, size_t count)
{
    for (size_t at = blockIdx.x * size_t{blockDim.x} + threadIdx.x; at < count; at += size_t{gridDim.x} * blockDim.x)
        to[at] = from[at];
}

// The same 8 MiB again and again, each time by another SM; four reads at once, as one alone waits for its answer.
__global__ void read_l2(const float4* from, float* to, size_t count, int turns)
{
    float sum = 0.0f;
    size_t step = size_t{gridDim.x} * blockDim.x, first = blockIdx.x * size_t{blockDim.x} + threadIdx.x;
    for (int turn = 0; turn < turns; turn++) {
        float4 value[4];
#pragma unroll
        for (int at = 0; at < 4; at++)
            value[at] = __ldcg(&from[(first + at * step + size_t(turn) * 4099 * blockDim.x) & (count - 1)]);  // 2^n
#pragma unroll
        for (int at = 0; at < 4; at++)
            sum += value[at].x + value[at].y + value[at].z + value[at].w;
    }
    if (sum == 1.2345f)
        *to = sum;
}

// Eight independent chains of fused multiply-adds in registers.
__global__ void fma_chains(float* to, int turns)
{
    float value[8];
    for (int at = 0; at < 8; at++)
        value[at] = float(threadIdx.x + at);
    for (int turn = 0; turn < turns; turn++)
        for (int at = 0; at < 8; at++)
            value[at] = fmaf(value[at], 0.999f, 0.5f);
    float sum = 0.0f;
    for (int at = 0; at < 8; at++)
        sum += value[at];
    if (sum == 1.2345f)
        *to = sum;
}

// A whole copy by four blocks.
__global__ void copy_few_blocks(const float4* from, float4* to, size_t count)
{
    for (size_t at = blockIdx.x * size_t{blockDim.x} + threadIdx.x; at < count; at += size_t{gridDim.x} * blockDim.x)
        to[at] = from[at];
}

// More live values than 32 registers hold; the order in which they are used is not known to the compiler.
__global__ void __launch_bounds__(1024, 2) spilling(const float* from, float* to, int turns)
{
    float kept[96];
    size_t base = (blockIdx.x * size_t{blockDim.x} + threadIdx.x) % (kSmall - 96);
#pragma unroll
    for (int at = 0; at < 96; at++)
        kept[at] = from[base + at];
    for (int turn = 0; turn < turns; turn++)
#pragma unroll
        for (int at = 0; at < 96; at++)
            kept[at] = fmaf(kept[at], kept[(at * 7 + 3) % 96], 0.5f);
    float sum = 0.0f;
#pragma unroll
    for (int at = 0; at < 96; at++)
        sum += kept[at];
    to[base] = sum;
}

// Each thread of a warp reads from another sector, and uses 4 bytes of it.
__global__ void strided(const float* from, float* to)
{
    size_t at = blockIdx.x * size_t{blockDim.x} + threadIdx.x;
    to[at] = from[at * 32];
}

// All 32 threads of a warp in one bank.
__global__ void bank_conflicts(float* to, int turns)
{
    __shared__ float rows[32 * 32];
    int lane = threadIdx.x % 32;
    for (int at = threadIdx.x; at < 32 * 32; at += blockDim.x)
        rows[at] = float(at);
    __syncthreads();
    float sum = 0.0f;
    volatile float* column = rows;
    for (int turn = 0; turn < turns; turn++)
        sum += column[lane * 32 + turn % 32];
    if (sum == 1.2345f)
        *to = sum;
}

// A matrix product in 16 bits on the ordinary pipes.
__global__ void gemm_bf16_plain(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c)
{
    int row = blockIdx.y * 16 + threadIdx.x / 16, column = blockIdx.x * 16 + threadIdx.x % 16;
    float sum = 0.0f;
    for (int at = 0; at < kSide; at++)
        sum = fmaf(__bfloat162float(a[row * kSide + at]), __bfloat162float(b[at * kSide + column]), sum);
    c[row * kSide + column] = sum;
}

// The same on the tensor pipe: a warp for each tile of 16 by 16.
__global__ void gemm_bf16_tensor(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c)
{
    using namespace nvcuda;
    int warp = threadIdx.x / 32;
    int row = (blockIdx.y * 2 + warp / 4) * 16, column = (blockIdx.x * 4 + warp % 4) * 16;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int at = 0; at < kSide; at += 16) {
        wmma::load_matrix_sync(left, a + row * kSide + at, kSide);
        wmma::load_matrix_sync(right, b + at * kSide + column, kSide);
        wmma::mma_sync(sum, left, right, sum);
    }
    wmma::store_matrix_sync(c + row * kSide + column, sum, kSide, wmma::mem_row_major);
}

bool launch(const char* name, void* from, void* to)
{
    auto* source = static_cast<float*>(from);
    auto* target = static_cast<float*>(to);
    auto* left = static_cast<__nv_bfloat16*>(from);
    if (!strcmp(name, "copy_dram"))
        copy_dram<<<132 * 16, kThreads>>>(static_cast<float4*>(from), static_cast<float4*>(to), kBig / 4);
    else if (!strcmp(name, "read_l2"))
        read_l2<<<132 * 8, kThreads>>>(static_cast<float4*>(from), target, kSmall / 4, 64);
    else if (!strcmp(name, "fma_chains"))
        fma_chains<<<132 * 16, kThreads>>>(target, 4096);
    else if (!strcmp(name, "copy_few_blocks"))
        copy_few_blocks<<<4, kThreads>>>(static_cast<float4*>(from), static_cast<float4*>(to), kSmall / 4);
    else if (!strcmp(name, "spilling"))
        spilling<<<132 * 8, 1024>>>(source, target, 16);
    else if (!strcmp(name, "strided"))
        strided<<<kBig / 32 / kThreads, kThreads>>>(source, target);
    else if (!strcmp(name, "bank_conflicts"))
        bank_conflicts<<<132 * 8, kThreads>>>(target, 4096);
    else if (!strcmp(name, "gemm_bf16_plain"))
        gemm_bf16_plain<<<dim3(kSide / 16, kSide / 16), 256>>>(left, left + kSide * kSide, target);
    else if (!strcmp(name, "gemm_bf16_tensor"))
        gemm_bf16_tensor<<<dim3(kSide / 64, kSide / 32), 256>>>(left, left + kSide * kSide, target);
    else
        return false;
    return true;
}

}  // namespace

int main(int argc, char** argv)
{
    void *from = nullptr, *to = nullptr;
    if (argc != 2 || cudaMalloc(&from, kBig * 4) || cudaMalloc(&to, kBig * 4) || cudaMemset(from, 0, kBig * 4))
        return 2;
    for (int turn = 0; turn < 6; turn++)
        if (!launch(argv[1], from, to))
            return 3;
    cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess)
        fprintf(stderr, "%s\n", cudaGetErrorString(error));
    return error != cudaSuccess;
}
