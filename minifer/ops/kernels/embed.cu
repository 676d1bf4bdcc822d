// Rows of the embedding table: stream[t] = table[tokens[t]].
//
// table [vocab, width], tokens [T], stream [T, width]. Grid (T): block t owns row t, a thread every blockDim-th element.
#include "common.cuh"

extern "C" __global__ void embed(const act_t* table, const int* tokens, float* stream, int width) {
    const act_t* from = table + (size_t)tokens[blockIdx.x] * width;
    float* to = stream + (size_t)blockIdx.x * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) to[i] = to_float(from[i]);
}
