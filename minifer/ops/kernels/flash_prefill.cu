// Attention of many new tokens of a sequence: a whole prompt, or a chunk of one behind what the cache holds already.
//
// The scores [new tokens, context] never exist as a whole: a block walks over the keys in tiles and keeps, for each of
// its rows, a running maximum, sum and output (Dao et al., "FlashAttention", 2022). The keys are read from the cache,
// the new ones included: rope_kv_write has put them there.
//
// q and out [tokens, heads, HEAD_DIM]. Per span (a sequence's part of the step): starts, its first row in q; counts, how
// many rows; lengths, its tokens in all, the new ones included; tables [spans, table_width], its blocks. A token sees
// itself and what came before, at most `window` tokens.
//
// Grid (ceil(largest count * GROUP / TILE_ROWS), kv_heads, spans), block 128 = 4 warps. A *row* is a query of one of the GROUP
// heads that share the kv head: row r is query r / GROUP under head r % GROUP, so that a tile of keys serves them all.
// The block owns TILE_ROWS rows, a warp a quarter of them. While scoring, a lane owns one key of the tile; while summing values, it
// owns elements lane, lane + 32, ... of the head.
#include "common.cuh"

#define ROWS_PER_WARP (HEAD_DIM <= 64 ? 8 : 4)  // what 48 KiB of shared memory hold
#define TILE_ROWS (4 * ROWS_PER_WARP)
#define TILE_KEYS 32
// What all lanes read alike is read four numbers at a time, so a head is filled up with zeros to a multiple of four:
// shared memory gives a warp one load per cycle, and a load must feed several multiplications.
#define HEAD_PAD ((HEAD_DIM + 3) / 4 * 4)

extern "C" __global__ void __launch_bounds__(128) flash_prefill(
        const act_t* q, const act_t* k_cache, const act_t* v_cache, const int* starts, const int* counts,
        const int* lengths, const int* tables, act_t* out, int kv_heads, int block_size, int table_width, int window,
        float scale) {
    __shared__ float4 q_tile[TILE_ROWS][HEAD_PAD / 4], p_tile[TILE_ROWS][TILE_KEYS / 4];
    __shared__ float v_tile[TILE_KEYS][HEAD_DIM];
    __shared__ float k_tile[TILE_KEYS][HEAD_PAD + 1];  // one more, so that 32 lanes reading 32 rows meet 32 banks
    int kv = blockIdx.y, span = blockIdx.z, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int first_row = blockIdx.x * TILE_ROWS, rows = counts[span] * GROUP, offset = lengths[span] - counts[span];
    if (first_row >= rows) return;  // a shorter span than the largest; the whole block leaves, nobody waits below

    for (int i = threadIdx.x; i < TILE_ROWS * HEAD_PAD; i += blockDim.x) {
        int row = first_row + i / HEAD_PAD, d = i % HEAD_PAD;
        size_t from = (((size_t)starts[span] + row / GROUP) * kv_heads + kv) * GROUP + row % GROUP;
        bool real = row < rows && d < HEAD_DIM;
        reinterpret_cast<float*>(q_tile[i / HEAD_PAD])[d] = real ? to_float(q[from * HEAD_DIM + d]) * scale : 0.0f;
    }
    for (int d = HEAD_DIM + warp; d < HEAD_PAD; d += 4) k_tile[lane][d] = 0.0f;
    float top[ROWS_PER_WARP], sum[ROWS_PER_WARP], acc[ROWS_PER_WARP][PER_LANE];
#pragma unroll
    for (int m = 0; m < ROWS_PER_WARP; ++m) {
        top[m] = NEG_BIG, sum[m] = 0.0f;
        for (int j = 0; j < PER_LANE; ++j) acc[m][j] = 0.0f;
    }

    int last_key = offset + (min(first_row + TILE_ROWS, rows) - 1) / GROUP;  // what the block's last row sees
    int first_key = max(0, offset + first_row / GROUP - window + 1);         // what its first row still sees
    for (int tile = first_key; tile <= last_key; tile += TILE_KEYS) {
        __syncthreads();  // the last tile has been used up
        for (int i = threadIdx.x; i < TILE_KEYS * HEAD_DIM; i += blockDim.x) {
            int key = tile + i / HEAD_DIM, d = i % HEAD_DIM;
            float k = 0.0f, v = 0.0f;
            if (key <= last_key) {
                size_t slot = (size_t)tables[span * table_width + key / block_size] * block_size + key % block_size;
                size_t at = (slot * kv_heads + kv) * HEAD_DIM + d;
                k = to_float(k_cache[at]), v = to_float(v_cache[at]);
            }
            k_tile[i / HEAD_DIM][d] = k;
            v_tile[i / HEAD_DIM][d] = v;
        }
        __syncthreads();

        float score[ROWS_PER_WARP] = {};
        for (int d = 0; d < HEAD_PAD; d += 4) {
            const float* k = &k_tile[lane][d];
#pragma unroll
            for (int m = 0; m < ROWS_PER_WARP; ++m) {
                float4 four = q_tile[warp * ROWS_PER_WARP + m][d / 4];
                score[m] += four.x * k[0] + four.y * k[1] + four.z * k[2] + four.w * k[3];
            }
        }
#pragma unroll
        for (int m = 0; m < ROWS_PER_WARP; ++m) {
            int row = warp * ROWS_PER_WARP + m, key = tile + lane, position = offset + (first_row + row) / GROUP;
            bool visible = key <= position && key > position - window && key <= last_key;
            float higher = fmaxf(top[m], warp_max(visible ? score[m] : NEG_BIG));
            float p = visible ? __expf(score[m] - higher) : 0.0f, shrink = __expf(top[m] - higher);
            top[m] = higher;
            sum[m] = sum[m] * shrink + warp_sum(p);
            for (int j = 0; j < PER_LANE; ++j) acc[m][j] *= shrink;
            reinterpret_cast<float*>(p_tile[row])[lane] = p;
        }
        __syncwarp();  // the warp reads only the rows of p_tile that it wrote itself
        for (int key = 0; key < TILE_KEYS; key += 4)
#pragma unroll
            for (int j = 0; j < PER_LANE; ++j) {
                int d = lane + 32 * j;
                float v[4];
                for (int i = 0; i < 4; ++i) v[i] = d < HEAD_DIM ? v_tile[key + i][d] : 0.0f;
#pragma unroll
                for (int m = 0; m < ROWS_PER_WARP; ++m) {
                    float4 four = p_tile[warp * ROWS_PER_WARP + m][key / 4];
                    acc[m][j] += four.x * v[0] + four.y * v[1] + four.z * v[2] + four.w * v[3];
                }
            }
    }

#pragma unroll
    for (int m = 0; m < ROWS_PER_WARP; ++m) {
        int row = first_row + warp * ROWS_PER_WARP + m;
        if (row >= rows) continue;
        size_t to = (((size_t)starts[span] + row / GROUP) * kv_heads + kv) * GROUP + row % GROUP;
        for (int j = 0; j < PER_LANE; ++j)
            if (lane + 32 * j < HEAD_DIM) out[to * HEAD_DIM + lane + 32 * j] = from_float(acc[m][j] / sum[m]);
    }
}
