// From the fused product of a layer to attention's inputs: queries and keys get their bias, their norm (Qwen3) and their
// rotation; keys and values go into their slot of the cache.
//
// qkv [T, heads + 2 kv_heads, HEAD_DIM]: the query heads, then the key heads, then the value heads of a token.
// bias [(heads + 2 kv_heads) * HEAD_DIM] or null; q_gain and k_gain [HEAD_DIM], both or neither null.
// cos_table and sin_table [positions, HEAD_DIM / 2], computed once in double precision.
// positions and slots [T]; slot < 0 is padding: nothing is written to the cache. q [T, heads, HEAD_DIM].
//
// Grid (T, heads + 2 kv_heads), block 32: one warp owns one head of one token. A lane owns the pairs
// (i, i + HEAD_DIM / 2) for i = lane, lane + 32, ..., because the rotation mixes the two numbers of a pair.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(32) rope_kv_write(
        const act_t* qkv, const act_t* bias, const act_t* q_gain, const act_t* k_gain, const float* cos_table,
        const float* sin_table, const int* positions, const int* slots, act_t* q, act_t* k_cache, act_t* v_cache,
        int heads, int kv_heads, float eps) {
    const int half = HEAD_DIM / 2;
    int token = blockIdx.x, head = blockIdx.y, slot = slots[token];
    bool is_q = head < heads, is_v = head >= heads + kv_heads;
    const act_t* from = qkv + ((size_t)token * (heads + 2 * kv_heads) + head) * HEAD_DIM;
    const act_t* gain = is_v ? nullptr : is_q ? q_gain : k_gain;
    if (bias) bias += (size_t)head * HEAD_DIM;

    float scale = 1.0f;
    if (gain) {  // the same for the whole block, so all lanes meet in the sum
        float squares = 0.0f;
        for (int i = threadIdx.x; i < HEAD_DIM; i += 32) {
            float x = to_float(from[i]) + (bias ? to_float(bias[i]) : 0.0f);
            squares += x * x;
        }
        scale = 1.0f / sqrtf(warp_sum(squares) / HEAD_DIM + eps);
    }

    act_t* to = is_q ? q + ((size_t)token * heads + head) * HEAD_DIM
              : is_v ? v_cache + ((size_t)slot * kv_heads + head - heads - kv_heads) * HEAD_DIM
                     : k_cache + ((size_t)slot * kv_heads + head - heads) * HEAD_DIM;
    if (!is_q && slot < 0) return;
    for (int i = threadIdx.x; i < half; i += 32) {
        float a = to_float(from[i]), b = to_float(from[i + half]);
        if (bias) a += to_float(bias[i]), b += to_float(bias[i + half]);
        if (gain) a *= scale * to_float(gain[i]), b *= scale * to_float(gain[i + half]);
        if (!is_v) {
            size_t angle = (size_t)positions[token] * half + i;
            float c = cos_table[angle], s = sin_table[angle], rotated = a * c - b * s;
            b = b * c + a * s;
            a = rotated;
        }
        to[i] = from_float(a);
        to[i + half] = from_float(b);
    }
}
