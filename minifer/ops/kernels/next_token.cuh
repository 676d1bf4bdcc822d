// What choosing a token needs, however it is chosen: the largest logit, the sum behind the log-probabilities, and the
// step of a sequence to its next position.
#pragma once

// The largest logit of a row and the smallest index that has it; `bad` counts what no model should give (NaN, +inf).
struct Top {
    float value;
    int index;
    int bad;
};

__device__ __forceinline__ bool beats(float value, int index, const Top& top) {
    return value > top.value || (value == top.value && index < top.index);
}

// All threads of the block call it and get the same answer. Thread i owns elements i, i + blockDim.x, ...
__device__ Top block_top(const float* row, int vocab) {
    __shared__ float values[32];
    __shared__ int indices[32];
    Top mine = {NEG_BIG, vocab, 0};
    for (int i = threadIdx.x; i < vocab; i += blockDim.x) {
        if (!(row[i] < 3.4e38f)) ++mine.bad;  // written so that NaN, which compares false with everything, is caught
        else if (beats(row[i], i, mine)) mine.value = row[i], mine.index = i;
    }
    for (int bit = 16; bit > 0; bit /= 2) {
        float value = __shfl_xor_sync(ALL_LANES, mine.value, bit);
        int index = __shfl_xor_sync(ALL_LANES, mine.index, bit);
        if (beats(value, index, mine)) mine.value = value, mine.index = index;
    }
    if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = mine.value, indices[threadIdx.x / 32] = mine.index;
    __syncthreads();
    for (int w = 0; w < (int)(blockDim.x + 31) / 32; ++w)
        if (beats(values[w], indices[w], mine)) mine.value = values[w], mine.index = indices[w];
    mine.bad = block_sum(mine.bad);
    if (mine.index == vocab) mine.bad = 1;  // nothing above -inf
    return mine;
}

// Sum of exp(logit - top) over the row, in every thread: the denominator of softmax.
__device__ double block_exp_sum(const float* row, int vocab, float top) {
    double sum = 0.0;
    for (int i = threadIdx.x; i < vocab; i += blockDim.x) sum += exp((double)(row[i] - top));
    return block_sum(sum);
}

// The sequence of this row moves on by one token, so that the next step can start without the host. Called by one thread.
// slot < 0 marks a row that is padding or that the host moves on itself. Past the end of its table a sequence gets slot
// -1: its next block is not known here yet, and the host will bring table and slot before the next step.
__device__ void advance(int row, int* positions, int* lengths, int* slots, const int* tables, int block_size,
                        int table_width) {
    if (slots[row] < 0) return;
    int position = positions[row] + 1, block = position / block_size;
    positions[row] = position;
    lengths[row] = position + 1;
    slots[row] = block < table_width ? tables[row * table_width + block] * block_size + position % block_size : -1;
}
