// out = silu(gate) * up, with silu(z) = z / (1 + exp(-z)).
//
// gate_up [T, 2 width]: a row's gate, then its up; out [T, width].
// Grid (ceil(width / blockDim), T): a thread owns one element of the output.
#include "common.cuh"

extern "C" __global__ void swiglu(const act_t* gate_up, act_t* out, int width) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    size_t row = blockIdx.y;
    if (column >= width) return;
    float gate = to_float(gate_up[row * 2 * width + column]);
    float up = to_float(gate_up[row * 2 * width + width + column]);
    out[row * width + column] = from_float(gate / (1.0f + __expf(-gate)) * up);
}
