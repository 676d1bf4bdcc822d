// out[b, n] = sum over k of x[b, k] weight[n, k], for the few rows b of a decode step.
//
// With few rows a product is a matter of reading the weight once, at full speed; tensor cores would not help, and CuPy
// cannot put cuBLAS into a CUDA graph. So a warp owns one output n, for ROWS rows at a time: it reads row n of the weight
// in pieces of 16 bytes per lane and uses each piece ROWS times.
//
// x [groups * ROWS, inputs], weight [outputs, inputs], out [groups * ROWS, outputs].
// Grid (groups, ceil(outputs / warps)): the groups of rows lie side by side in the grid, so that blocks which need the
// same piece of the weight run at about the same time and find it in the L2 cache.
//   skinny_gemm_b*       out in act_t
//   skinny_gemm_wide_b*  out in float, plus bias [outputs] or null, plus residual (laid out as out) or null. The residual
//                        may be `out` itself: one lane reads and writes an element.
#include "common.cuh"

struct Piece {
    float values[PACK];
};

// PACK numbers of a row from k on. Rows whose length is no multiple of PACK do not start at 16-byte addresses and are
// read number by number, with zeros past their end.
__device__ __forceinline__ Piece load_piece(const act_t* row, int k, int length) {
    Piece piece;
    if (length % PACK == 0) {
        uint4 raw = *reinterpret_cast<const uint4*>(row + k);
        const act_t* numbers = reinterpret_cast<const act_t*>(&raw);
#pragma unroll
        for (int i = 0; i < PACK; ++i) piece.values[i] = to_float(numbers[i]);
    } else {
        for (int i = 0; i < PACK; ++i) piece.values[i] = k + i < length ? to_float(row[k + i]) : 0.0f;
    }
    return piece;
}

// This warp's dot products, one per row of x, in every lane.
template <int ROWS>
__device__ __forceinline__ void dot_products(const act_t* x, const act_t* weight_row, int inputs, float* sums) {
#pragma unroll
    for (int b = 0; b < ROWS; ++b) sums[b] = 0.0f;
#pragma unroll(ROWS <= 2 ? 4 : 1)  // several loads on their way at once; with many rows the registers would not suffice
    for (int k = threadIdx.x % 32 * PACK; k < inputs; k += 32 * PACK) {
        Piece w = load_piece(weight_row, k, inputs);
#pragma unroll
        for (int b = 0; b < ROWS; ++b) {
            Piece v = load_piece(x + (size_t)b * inputs, k, inputs);
#pragma unroll
            for (int i = 0; i < PACK; ++i) sums[b] += w.values[i] * v.values[i];
        }
    }
#pragma unroll
    for (int b = 0; b < ROWS; ++b) sums[b] = warp_sum(sums[b]);
}

template <int ROWS>
__device__ void skinny_gemm(const act_t* x, const act_t* weight, act_t* out, int outputs, int inputs) {
    int n = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
    size_t row = (size_t)blockIdx.x * ROWS;
    if (n >= outputs) return;  // a whole warp leaves
    float sums[ROWS];
    dot_products<ROWS>(x + row * inputs, weight + (size_t)n * inputs, inputs, sums);
    if (threadIdx.x % 32 == 0)
        for (int b = 0; b < ROWS; ++b) out[(row + b) * outputs + n] = from_float(sums[b]);
}

template <int ROWS>
__device__ void skinny_gemm_wide(const act_t* x, const act_t* weight, const act_t* bias, const float* residual,
                                 float* out, int outputs, int inputs) {
    int n = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
    size_t row = (size_t)blockIdx.x * ROWS;
    if (n >= outputs) return;
    float sums[ROWS];
    dot_products<ROWS>(x + row * inputs, weight + (size_t)n * inputs, inputs, sums);
    if (threadIdx.x % 32 != 0) return;
    for (int b = 0; b < ROWS; ++b) {
        size_t at = (row + b) * outputs + n;
        out[at] = sums[b] + (bias ? to_float(bias[n]) : 0.0f) + (residual ? residual[at] : 0.0f);
    }
}

extern "C" __global__ void skinny_gemm_b1(const act_t* x, const act_t* weight, act_t* out, int outputs, int inputs) {
    skinny_gemm<1>(x, weight, out, outputs, inputs);
}
extern "C" __global__ void skinny_gemm_b2(const act_t* x, const act_t* weight, act_t* out, int outputs, int inputs) {
    skinny_gemm<2>(x, weight, out, outputs, inputs);
}
extern "C" __global__ void skinny_gemm_b4(const act_t* x, const act_t* weight, act_t* out, int outputs, int inputs) {
    skinny_gemm<4>(x, weight, out, outputs, inputs);
}
extern "C" __global__ void skinny_gemm_b8(const act_t* x, const act_t* weight, act_t* out, int outputs, int inputs) {
    skinny_gemm<8>(x, weight, out, outputs, inputs);
}
extern "C" __global__ void skinny_gemm_wide_b1(const act_t* x, const act_t* weight, const act_t* bias,
                                               const float* residual, float* out, int outputs, int inputs) {
    skinny_gemm_wide<1>(x, weight, bias, residual, out, outputs, inputs);
}
extern "C" __global__ void skinny_gemm_wide_b2(const act_t* x, const act_t* weight, const act_t* bias,
                                               const float* residual, float* out, int outputs, int inputs) {
    skinny_gemm_wide<2>(x, weight, bias, residual, out, outputs, inputs);
}
extern "C" __global__ void skinny_gemm_wide_b4(const act_t* x, const act_t* weight, const act_t* bias,
                                               const float* residual, float* out, int outputs, int inputs) {
    skinny_gemm_wide<4>(x, weight, bias, residual, out, outputs, inputs);
}
extern "C" __global__ void skinny_gemm_wide_b8(const act_t* x, const act_t* weight, const act_t* bias,
                                               const float* residual, float* out, int outputs, int inputs) {
    skinny_gemm_wide<8>(x, weight, bias, residual, out, outputs, inputs);
}
