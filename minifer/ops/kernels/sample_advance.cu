// A token drawn from each row, as minifer/sampling.py draws it: temperature, min-p, top-k, top-p, then one draw whose
// random number is a hash of the request's seed and the token's position. Given the same logits, the same tokens.
//
// Each filter keeps a head of the list of tokens sorted by (score, falling; id, rising). So nothing is sorted and no set
// is stored: a filter is a *cut* in that list, found by bisection over the score, and it suffices to know the cut.
//
// logits [B, vocab]. Per row: temperatures (0: the most likely token), floors (the lowest score that min-p keeps, as
// log(min_p); -3e38: off), top_ks (0: off), top_ps (1: off), seeds. Outputs and the rest as in argmax_advance.
//
// Grid (B), block of whole warps, at most 1024 threads: block b owns row b. In the passes over the vocabulary a thread
// owns one stretch of adjacent ids, because the draw and the ties go by id.
#include "common.cuh"
#include "next_token.cuh"

typedef unsigned long long u64;

// SplitMix64's step (Steele, Lea and Flood, 2014): every bit of the input stirs every bit of the output.
__device__ u64 mix64(u64 z) {
    z += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

__device__ double uniform(u64 seed, u64 position) {
    return (double)(mix64(mix64(seed) ^ position) >> 11) * (1.0 / 9007199254740992.0);  // 53 bits: [0, 1)
}

// Scores as unsigned numbers in the same order, so that they can be bisected bit by bit.
__device__ unsigned key_of(float score) {
    unsigned bits = __float_as_int(score);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ float score_of(unsigned key) {
    return __int_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// A row under its temperature, this thread's stretch of it, and the cut so far: a token is kept if its key is above
// `key`, or is equal and its id at most `last`.
struct Row {
    const float* logits;
    float top, temperature;
    int begin, end;
    unsigned key;
    int last;
};

__device__ float score(const Row& row, int id) {
    return (row.logits[id] - row.top) / row.temperature;
}

__device__ bool keeps(const Row& row, unsigned key, int id) {
    return key > row.key || (key == row.key && id <= row.last);
}

// How much of the row is kept and has a key of at least `key`: as a number of tokens, or as the sum of exp(score).
__device__ double amount(const Row& row, unsigned key, bool by_weight) {
    double mine = 0.0;
    for (int id = row.begin; id < row.end; ++id) {
        float s = score(row, id);
        unsigned k = key_of(s);
        if (k >= key && keeps(row, k, id)) mine += by_weight ? exp((double)s) : 1.0;
    }
    return block_sum(mine);
}

// The id of the `wanted`-th kept token whose key is exactly `key`; the last one if there are fewer.
__device__ int nth_of_key(const Row& row, unsigned key, double wanted) {
    __shared__ int counts[1024];
    __shared__ int found;
    int mine = 0;
    for (int id = row.begin; id < row.end; ++id) mine += key_of(score(row, id)) == key && keeps(row, key, id);
    counts[threadIdx.x] = mine;
    if (threadIdx.x == 0) found = 0x7fffffff;
    __syncthreads();
    int before = 0;
    for (int i = 0; i < (int)threadIdx.x; ++i) before += counts[i];
    if (before < wanted && before + mine >= wanted) {  // one thread at most: the one whose stretch holds the token
        for (int id = row.begin; id < row.end && before < wanted; ++id)
            if (key_of(score(row, id)) == key && keeps(row, key, id)) ++before, found = id;
    }
    __syncthreads();
    int answer = found;
    __syncthreads();
    return answer;
}

// Move the cut up, to the shortest head of the list that holds at least `target` (tokens, or weight).
__device__ void tighten(Row& row, double target, bool by_weight, unsigned lowest) {
    unsigned low = lowest > row.key ? lowest : row.key, high = key_of(0.0f);
    if (amount(row, low, by_weight) < target) return;  // everything that is kept is not enough: keep it all
    while (low < high) {  // invariant: from `low` up there is enough, from above `high` up there is not
        unsigned middle = low + (high - low) / 2 + 1;
        if (amount(row, middle, by_weight) >= target) low = middle;
        else high = middle - 1;
    }
    double above = low == key_of(0.0f) ? 0.0 : amount(row, low + 1, by_weight);
    double each = by_weight ? exp((double)score_of(low)) : 1.0;
    int last = nth_of_key(row, low, fmax(1.0, ceil((target - above) / each)));
    row.key = low, row.last = last;
}

// The first kept id at which the weights, added up by id, exceed u times their sum. In every thread.
__device__ int draw(const Row& row, double u) {
    __shared__ double weights[1024];
    __shared__ int owner, token;
    __shared__ double before, target;
    double mine = 0.0;
    for (int id = row.begin; id < row.end; ++id)
        if (keeps(row, key_of(score(row, id)), id)) mine += exp((double)score(row, id));
    weights[threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x == 0) {
        double total = 0.0, sum = 0.0;
        for (int i = 0; i < (int)blockDim.x; ++i) total += weights[i];
        target = u * total;
        for (int i = 0; i < (int)blockDim.x; ++i) {
            if (weights[i] > 0.0) owner = i, before = sum;  // stays at the last one if rounding leaves none above
            sum += weights[i];
            if (sum > target) break;
        }
    }
    __syncthreads();
    if ((int)threadIdx.x == owner) {
        double sum = before;
        for (int id = row.begin; id < row.end && !(sum > target); ++id) {
            double weight = keeps(row, key_of(score(row, id)), id) ? exp((double)score(row, id)) : 0.0;
            sum += weight;
            if (weight > 0.0) token = id;
        }
    }
    __syncthreads();
    return token;
}

extern "C" __global__ void __launch_bounds__(1024) sample_advance(
        const float* logits, const float* temperatures, const float* floors, const int* top_ks, const double* top_ps,
        const unsigned long long* seeds, int* tokens, float* logprobs, int* positions, int* lengths, int* slots,
        const int* tables, int vocab, int block_size, int table_width) {
    int b = blockIdx.x, stretch = (vocab + blockDim.x - 1) / blockDim.x, begin = min(vocab, (int)threadIdx.x * stretch);
    const float* logits_row = logits + (size_t)b * vocab;
    Top top = block_top(logits_row, vocab);
    int token = top.bad ? -1 : top.index;
    if (!top.bad && temperatures[b] > 0.0f) {  // the same for the whole block
        Row row = {logits_row, top.value, temperatures[b], begin, min(vocab, begin + stretch), key_of(floors[b]), vocab};
        if (top_ks[b] > 0 && top_ks[b] < vocab) tighten(row, top_ks[b], false, 0u);
        if (top_ps[b] < 1.0) {
            double total = amount(row, 0u, true);
            // Tokens lighter than (1 - p) / vocab of the whole weigh less than 1 - p together: none of them is needed.
            double lightest = fmin((1.0 - top_ps[b]) / vocab * total, 1.0);
            tighten(row, fmax(top_ps[b] * total, 1e-300), true, key_of((float)log(lightest) - 1e-3f));
        }
        token = draw(row, uniform(seeds[b], (u64)(positions[b] + 1)));
    }
    double sum = block_exp_sum(logits_row, vocab, top.value);
    if (threadIdx.x != 0) return;
    tokens[b] = token;
    logprobs[b] = token < 0 ? 0.0f : (float)((double)(logits_row[token] - top.value) - log(sum));
    advance(b, positions, lengths, slots, tables, block_size, table_width);
}
