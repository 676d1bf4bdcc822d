// out[i] = x / sqrt(mean(x^2) + eps) * gain, with x a row of the residual stream; first whatever is still to be added to
// that row is added to it.
//
// stream [T, width]; pending [T, width] or null, what the last product gave and nobody has added yet; bias [width] or
// null, added with it; rows [R] or null: output row i is made from row rows[i] of the stream (null: row i), no row
// twice; gain [width]; out [R, width].
// Grid (R): block i owns row rows[i] of the stream and row i of the output, a thread every blockDim-th element of both.
#include "common.cuh"

extern "C" __global__ void rms_norm(float* stream, const act_t* pending, const act_t* bias, const int* rows,
                                    const act_t* gain, act_t* out, int width, float eps) {
    size_t from = (size_t)(rows ? rows[blockIdx.x] : blockIdx.x) * width, to = (size_t)blockIdx.x * width;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float x = stream[from + i];
        if (pending) {
            x += to_float(pending[from + i]) + (bias ? to_float(bias[i]) : 0.0f);
            stream[from + i] = x;
        }
        squares += x * x;
    }
    float scale = 1.0f / sqrtf(block_sum(squares) / width + eps);
    for (int i = threadIdx.x; i < width; i += blockDim.x)  // the same elements again: a thread reads what it wrote itself
        out[to + i] = from_float(stream[from + i] * scale * to_float(gain[i]));
}
