// The most likely token of each row, its log-probability, and every sequence one step on: what a greedy decode step ends
// with, so that the next one can begin without the host.
//
// logits [B, vocab]; tokens and logprobs [B] are written; positions, lengths and slots [B] move on (see advance), by
// tables [B, table_width]. A row with no usable logits gets token -1.
//
// Grid (B), block of whole warps, at most 1024 threads: block b owns row b.
#include "common.cuh"
#include "next_token.cuh"

extern "C" __global__ void __launch_bounds__(1024) argmax_advance(
        const float* logits, int* tokens, float* logprobs, int* positions, int* lengths, int* slots, const int* tables,
        int vocab, int block_size, int table_width) {
    const float* row = logits + (size_t)blockIdx.x * vocab;
    Top top = block_top(row, vocab);
    double sum = block_exp_sum(row, vocab, top.value);
    if (threadIdx.x != 0) return;
    tokens[blockIdx.x] = top.bad ? -1 : top.index;
    logprobs[blockIdx.x] = (float)-log(sum);
    advance(blockIdx.x, positions, lengths, slots, tables, block_size, table_width);
}
