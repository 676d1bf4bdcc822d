// What all kernels share: the number type, and sums over the threads of a warp or a block.
//
// One source serves three compilers: NVRTC inside CuPy, nvcc, and g++ with an emulating header that runs every thread as
// a fiber. Who puts the files together defines
//     ACT_FLOAT16 | ACT_BFLOAT16 | ACT_FLOAT32   the type of weights, activations and cache (float16 if none is given)
//     HEAD_DIM, GROUP                            size of a head; query heads that share one kv head
// as constants, because a head has to lie in registers, and registers cannot be indexed by a number known only later.
//
// Everywhere: act_t is read and written, sums are float, and the residual stream ("stream") is float from end to end.
// A pointer that may be null says so. Shapes stand as [rows, columns], row-major; a slot is one token's place in the
// cache, so k_cache and v_cache are [slots, kv_heads, HEAD_DIM].
#pragma once
#if defined(ACT_FLOAT32)
typedef float act_t;
__device__ __forceinline__ float to_float(act_t value) { return value; }
__device__ __forceinline__ act_t from_float(float value) { return value; }
#elif defined(ACT_BFLOAT16)
#include <cuda_bf16.h>
typedef __nv_bfloat16 act_t;
__device__ __forceinline__ float to_float(act_t value) { return __bfloat162float(value); }
__device__ __forceinline__ act_t from_float(float value) { return __float2bfloat16(value); }
#else
#include <cuda_fp16.h>
typedef __half act_t;
__device__ __forceinline__ float to_float(act_t value) { return __half2float(value); }
__device__ __forceinline__ act_t from_float(float value) { return __float2half(value); }
#endif

#ifndef HEAD_DIM
#define HEAD_DIM 64
#endif
#ifndef GROUP
#define GROUP 3
#endif

#define NEG_BIG (-1.0e30f)       // below every score; NVRTC has no INFINITY, and -inf minus -inf would be NaN
#define ALL_LANES 0xffffffffu
#define PACK (16 / (int)sizeof(act_t))  // numbers in the 16 bytes that one thread loads at once

// The elements of a head that one lane owns: lane, lane + 32, lane + 64 ...; the last may lie beyond the head.
#define PER_LANE ((HEAD_DIM + 31) / 32)

// Sum over the 32 lanes of a warp, in every lane: each step adds the value of the lane whose number differs in one bit.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
    for (int bit = 16; bit > 0; bit /= 2) value += __shfl_xor_sync(ALL_LANES, value, bit);
    return value;
}

__device__ __forceinline__ float warp_max(float value) {
    for (int bit = 16; bit > 0; bit /= 2) value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, bit));
    return value;
}

// Sum over all threads of a block, in every thread, always in the same order. All threads must call it.
template <class T>
__device__ T block_sum(T value) {
    __shared__ T of_warp[32];
    int warps = (blockDim.x + 31) / 32;
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    T total = 0;
    for (int w = 0; w < warps; ++w) total += of_warp[w];
    __syncthreads();  // nobody may write to of_warp in a next call while somebody still reads it in this one
    return total;
}
