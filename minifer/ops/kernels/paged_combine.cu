// Attention of one new token per sequence, the second half: merges the stretches that paged_split left.
//
// part_stats [B, heads, splits, 2] and part_out [B, heads, splits, HEAD_DIM] as paged_split wrote them; rows [B] or null
// as there; out [tokens, heads, HEAD_DIM]. A sequence of length 0 gets zeros.
//
// Grid (B, heads), block 32: one warp owns one head of one sequence, a lane elements lane, lane + 32, ... of it.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(32) paged_combine(const float* part_stats, const float* part_out,
                                                               const int* rows, act_t* out, int heads, int splits) {
    size_t part = ((size_t)blockIdx.x * heads + blockIdx.y) * splits;
    size_t to = ((size_t)(rows ? rows[blockIdx.x] : blockIdx.x) * heads + blockIdx.y) * HEAD_DIM;
    float highest = NEG_BIG, total = 0.0f;
    for (int s = 0; s < splits; ++s) highest = fmaxf(highest, part_stats[(part + s) * 2]);
    for (int s = 0; s < splits; ++s) total += part_stats[(part + s) * 2 + 1] * __expf(part_stats[(part + s) * 2] - highest);
    for (int d = threadIdx.x; d < HEAD_DIM; d += 32) {
        float merged = 0.0f;
        for (int s = 0; s < splits; ++s)
            merged += part_out[(part + s) * HEAD_DIM + d] * __expf(part_stats[(part + s) * 2] - highest);
        out[to + d] = from_float(total > 0.0f ? merged / total : 0.0f);
    }
}
