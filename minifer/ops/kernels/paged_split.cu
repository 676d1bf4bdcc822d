// Attention of one new token per sequence over its paged cache, the first half: every block reads one stretch of one
// sequence's context and leaves a partial result; paged_combine merges the stretches.
//
// One block per sequence and head would leave most of the GPU idle at small batches, so the context is split; and one
// block serves all GROUP query heads that share a kv head, so that every key and value is read once and not GROUP times.
//
// q [tokens, heads, HEAD_DIM]; rows [B] or null: sequence b's query is row rows[b] (null: row b); lengths [B], tokens
// visible to it, 0 for padding; tables [B, table_width], its blocks; a token sees the last `window` of them.
// part_stats [B, heads, splits, 2] gets the running maximum and sum of each stretch, part_out [B, heads, splits,
// HEAD_DIM] its unnormalised output.
//
// Grid (B, kv_heads, splits), block 128 = 4 warps. Warp w owns keys w, w + 4, ... of the stretch and scores each for all
// GROUP heads; a lane owns elements lane, lane + 32, ... of the head. At the end the four warps are merged.
#include "common.cuh"

#define SPLIT_WARPS 4
#define SHORTEST_STRETCH 32  // below this a stretch costs more to merge than to read

extern "C" __global__ void __launch_bounds__(128) paged_split(
        const act_t* q, const act_t* k_cache, const act_t* v_cache, const int* rows, const int* lengths,
        const int* tables, float* part_stats, float* part_out, int kv_heads, int block_size, int table_width, int window,
        float scale) {
    __shared__ float warp_max_of[SPLIT_WARPS][GROUP], warp_sum_of[SPLIT_WARPS][GROUP];
    __shared__ float warp_out[SPLIT_WARPS][GROUP][HEAD_DIM];
    int sequence = blockIdx.x, kv = blockIdx.y, split = blockIdx.z, splits = gridDim.z;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int length = lengths[sequence], first = max(0, length - window);
    int stretch = max(SHORTEST_STRETCH, (length - first + splits - 1) / splits);
    int begin = first + split * stretch, end = min(length, begin + stretch);
    size_t query = ((size_t)(rows ? rows[sequence] : sequence) * kv_heads + kv) * GROUP * HEAD_DIM;
    size_t part = ((size_t)sequence * kv_heads + kv) * GROUP * splits + split;  // of the group's first head

    float qs[GROUP][PER_LANE], out[GROUP][PER_LANE], top[GROUP], sum[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        top[g] = NEG_BIG, sum[g] = 0.0f;
#pragma unroll
        for (int j = 0; j < PER_LANE; ++j) {
            int d = lane + 32 * j;
            qs[g][j] = d < HEAD_DIM ? to_float(q[query + g * HEAD_DIM + d]) * scale : 0.0f;
            out[g][j] = 0.0f;
        }
    }

    for (int t = begin + warp; t < end; t += SPLIT_WARPS) {
        size_t slot = (size_t)tables[sequence * table_width + t / block_size] * block_size + t % block_size;
        size_t at = (slot * kv_heads + kv) * HEAD_DIM;
        float key[PER_LANE], value[PER_LANE];
#pragma unroll
        for (int j = 0; j < PER_LANE; ++j) {
            int d = lane + 32 * j;
            key[j] = d < HEAD_DIM ? to_float(k_cache[at + d]) : 0.0f;
            value[j] = d < HEAD_DIM ? to_float(v_cache[at + d]) : 0.0f;
        }
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
            float dot = 0.0f;
#pragma unroll
            for (int j = 0; j < PER_LANE; ++j) dot += qs[g][j] * key[j];
            float score = warp_sum(dot), higher = fmaxf(top[g], score);
            // Online softmax: what was summed under the old maximum shrinks by `shrink` under the new one.
            float shrink = __expf(top[g] - higher), p = __expf(score - higher);
            top[g] = higher;
            sum[g] = sum[g] * shrink + p;
#pragma unroll
            for (int j = 0; j < PER_LANE; ++j) out[g][j] = out[g][j] * shrink + p * value[j];
        }
    }

#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        if (lane == 0) warp_max_of[warp][g] = top[g], warp_sum_of[warp][g] = sum[g];
#pragma unroll
        for (int j = 0; j < PER_LANE; ++j)
            if (lane + 32 * j < HEAD_DIM) warp_out[warp][g][lane + 32 * j] = out[g][j];
    }
    __syncthreads();
    // Now thread i owns element i % HEAD_DIM of head i / HEAD_DIM, and merges what the warps found about it.
    for (int i = threadIdx.x; i < GROUP * HEAD_DIM; i += blockDim.x) {
        int g = i / HEAD_DIM, d = i % HEAD_DIM;
        float highest = NEG_BIG, total = 0.0f, merged = 0.0f;
        for (int w = 0; w < SPLIT_WARPS; ++w) highest = fmaxf(highest, warp_max_of[w][g]);
        for (int w = 0; w < SPLIT_WARPS; ++w) {
            float shrink = __expf(warp_max_of[w][g] - highest);
            total += warp_sum_of[w][g] * shrink;
            merged += warp_out[w][g][d] * shrink;
        }
        size_t at = part + (size_t)g * splits;
        part_out[at * HEAD_DIM + d] = merged;
        if (d == 0) part_stats[at * 2] = highest, part_stats[at * 2 + 1] = total;
    }
}
