// cuda_on_cpu.h: the part of CUDA C that minifer's kernels use, on a CPU. One block at a time; every thread is a fiber.
//
// A fiber is a function with a stack of its own that can stop in the middle and go on later. So all threads of a block
// can wait at the same __syncthreads(), though only one of them ever runs at a time. The scheduler (run_block, below)
// decides whose turn it is, and that makes it a better judge of a kernel than a GPU in four ways:
//
//   * a __syncthreads() that not all threads of the block reach, or a *_sync() that not all lanes of its mask reach,
//     is an error here; hardware may hang, or go on with wrong numbers;
//   * lanes never run in lockstep, so code that relies on it breaks here, as it may on any GPU since Volta;
//   * with a seed, the order of blocks is shuffled, and that of warps and lanes after every barrier: where a barrier is
//     missing, two seeds give two results;
//   * shared memory starts as NaN (all bits set) in every block, never as a convenient zero.
//
// Not here: memory order between blocks (they run one after another), tensor cores, inline PTX, textures, flushing of
// denormals (-ftz), arithmetic in 16 bits (converting is), and anything about time.
#pragma once
#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <ucontext.h>
#include <utility>
#include <vector>

// ---- the words of the language ------------------------------------------------------------------------------------
#define __global__
#define __device__
#define __host__
#define __constant__ const
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __restrict__ __restrict
#define __shared__ static  // one block at a time, so static storage is the block's own; kernel_cpu.py adds the poison
#define warpSize 32

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

// ---- threads as fibers --------------------------------------------------------------------------------------------
namespace emu {

enum State { READY, AT_WARP_BARRIER, AT_BLOCK_BARRIER, DONE };

struct Thread {
    ucontext_t start;        // how the fiber begins
    jmp_buf where;           // where it goes on
    bool started = false;
    State state = READY;
    dim3 index;              // threadIdx
    unsigned linear = 0;     // its number in the block
    unsigned mask = 0;       // the lanes that it waits for, at a warp barrier
    unsigned parity = 0;     // which of the two mailboxes of its warp the next shuffle uses
};

struct Warp {
    uint64_t mailbox[2][32];  // two, so that a fast lane can post its next value while a slow one still reads
};

constexpr size_t STACK_BYTES = 64 * 1024;
constexpr size_t MOST_THREADS = 1024;

static std::vector<Thread> threads;
static std::vector<Warp> warps;
static std::vector<std::unique_ptr<char[]>> stacks;
static std::vector<std::max_align_t> dynamic_shared;
static jmp_buf scheduler;
static Thread* self = nullptr;
static dim3 grid_dim, block_dim, block_idx;
static std::function<void()>* kernel = nullptr;
static std::string error;
static unsigned block_number = 0;  // counts all blocks of all launches: "has this shared array been poisoned yet?"

// What a launch met, for whoever wants to look: each place with a __syncthreads() and how many threads passed it.
static std::map<std::pair<std::string, int>, uint64_t> barriers;
static uint64_t warp_operations = 0;
static std::string report_text;
static std::string dropped_file;  // the place whose barrier is left out on purpose
static int dropped_line = 0;

// AddressSanitizer has to be told that the stack changes.
#ifdef __SANITIZE_ADDRESS__
extern "C" void __sanitizer_start_switch_fiber(void** save, const void* bottom, size_t size);
extern "C" void __sanitizer_finish_switch_fiber(void* saved, const void** bottom, size_t* size);
static const void* main_bottom = nullptr;
static size_t main_size = 0;
static void leave_main(Thread& t) {
    __sanitizer_start_switch_fiber(nullptr, stacks[&t - threads.data()].get(), STACK_BYTES);
}
static void enter_fiber() { __sanitizer_finish_switch_fiber(nullptr, &main_bottom, &main_size); }
static void leave_fiber() { __sanitizer_start_switch_fiber(nullptr, main_bottom, main_size); }
static void enter_main() { __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr); }
#else
static void leave_main(Thread&) {}
static void enter_fiber() {}
static void leave_fiber() {}
static void enter_main() {}
#endif

// setcontext starts a fiber; _setjmp and _longjmp change between fibers, since swapcontext makes a system call each time.
static void resume(Thread& t) {
    self = &t;
    if (_setjmp(scheduler)) {
        enter_main();
        return;
    }
    leave_main(t);
    if (t.started) _longjmp(t.where, 1);
    t.started = true;
    setcontext(&t.start);
}

static void yield_as(State state) {
    self->state = state;
    if (_setjmp(self->where)) {
        enter_fiber();
        return;
    }
    leave_fiber();
    _longjmp(scheduler, 1);
}

static void fiber() {
    enter_fiber();
    for (;;) {  // a fiber is used again for the thread of the same number of the next block
        (*kernel)();
        yield_as(DONE);
    }
}

static unsigned lane() { return self->linear & 31; }

static void block_barrier(const char* file, int line) {
    ++barriers[{file, line}];
    if (line == dropped_line && dropped_file == file) return;
    yield_as(AT_BLOCK_BARRIER);
}

static void warp_barrier(unsigned mask) {
    ++warp_operations;
    self->mask = mask;
    yield_as(AT_WARP_BARRIER);
}

// The heart of every shuffle: post a value, wait for the lanes of the mask, read the mailbox of lane `source`.
template <class T>
T exchange(unsigned mask, T value, unsigned source) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    Warp& warp = warps[self->linear >> 5];
    unsigned box = self->parity, first = self->linear & ~31u;
    self->parity ^= 1;
    warp.mailbox[box][lane()] = 0;
    std::memcpy(&warp.mailbox[box][lane()], &value, sizeof(T));
    warp_barrier(mask);
    T result;
    std::memcpy(&result, &warp.mailbox[box][source & 31], sizeof(T));
    bool takes_part = (mask >> (source & 31) & 1) && first + (source & 31) < threads.size();
    if (!takes_part) std::memset(&result, 0xff, sizeof(T));  // undefined on a GPU: NaN here
    return result;
}

// ---- the scheduler ------------------------------------------------------------------------------------------------

// Let those lanes of a warp go on whose mask has arrived in full. True if any could.
static bool release_warp(unsigned first, unsigned last) {
    unsigned exists = last - first == 32 ? ~0u : (1u << (last - first)) - 1, waiting = 0;
    bool any = false;
    for (unsigned i = first; i < last; ++i) waiting |= (unsigned)(threads[i].state == AT_WARP_BARRIER) << (i - first);
    while (waiting) {  // once for each mask that somebody waits with; usually that is one
        unsigned mask = threads[first + __builtin_ctz(waiting)].mask, group = 0;
        for (unsigned i = first; i < last; ++i)
            if (waiting >> (i - first) & 1 && threads[i].mask == mask) group |= 1u << (i - first);
        waiting &= ~group;
        if (group != (mask & exists)) continue;
        for (unsigned i = first; i < last; ++i)
            if (group >> (i - first) & 1) threads[i].state = READY;
        any = true;
    }
    return any;
}

static void prepare_threads() {
    for (unsigned i = 0; i < threads.size(); ++i) {
        Thread& t = threads[i];
        t.state = READY;
        t.linear = i;
        t.parity = 0;
        t.index = {i % block_dim.x, i / block_dim.x % block_dim.y, i / (block_dim.x * block_dim.y)};
        if (t.started) continue;
        getcontext(&t.start);
        t.start.uc_stack.ss_sp = stacks[i].get();
        t.start.uc_stack.ss_size = STACK_BYTES;
        t.start.uc_link = nullptr;
        makecontext(&t.start, fiber, 0);
    }
}

static std::string stuck(unsigned done, unsigned waiting) {
    auto n = (unsigned)threads.size();
    return "a barrier that not all threads reach: in block (" + std::to_string(block_idx.x) + ", " +
           std::to_string(block_idx.y) + ", " + std::to_string(block_idx.z) + ") of " + std::to_string(n) +
           " threads, " + std::to_string(waiting) + " wait at __syncthreads(), " + std::to_string(done) +
           " have returned, " + std::to_string(n - done - waiting) + " wait for other lanes of their warp";
}

// One block from start to end: run every thread up to its next barrier, then let go whoever may go on.
static void run_block(std::mt19937& random, bool shuffle) {
    auto n = (unsigned)threads.size();
    std::vector<unsigned> warp_order((n + 31) / 32), lane_order(32);
    for (unsigned i = 0; i < warp_order.size(); ++i) warp_order[i] = i;
    for (unsigned i = 0; i < 32; ++i) lane_order[i] = i;
    if (!dynamic_shared.empty()) std::memset(dynamic_shared.data(), 0xff, dynamic_shared.size() * sizeof(std::max_align_t));
    ++block_number;
    prepare_threads();
    for (;;) {
        if (shuffle) std::shuffle(warp_order.begin(), warp_order.end(), random);
        for (unsigned w : warp_order) {
            unsigned first = w * 32, last = std::min(n, first + 32);
            do {
                if (shuffle) std::shuffle(lane_order.begin(), lane_order.end(), random);
                for (unsigned l : lane_order)
                    if (first + l < last && threads[first + l].state == READY) resume(threads[first + l]);
            } while (release_warp(first, last));
        }
        unsigned done = 0, waiting = 0;
        for (Thread& t : threads) done += t.state == DONE, waiting += t.state == AT_BLOCK_BARRIER;
        if (done == n) return;
        if (waiting == n) {
            for (Thread& t : threads) t.state = READY;
            continue;
        }
        error = stuck(done, waiting);
        for (Thread& t : threads) t.started = t.started && t.state == DONE;  // give up the fibers that hang half-way
        return;
    }
}

static const char* run(const unsigned* grid, const unsigned* block, size_t shared_bytes, unsigned seed,
                       std::function<void()> body) {
    grid_dim = {grid[0], grid[1], grid[2]};
    block_dim = {block[0], block[1], block[2]};
    size_t n = (size_t)block[0] * block[1] * block[2];
    error.clear();
    barriers.clear();
    warp_operations = 0;
    if (n == 0 || n > MOST_THREADS) {
        error = "a block has 1 to 1024 threads, not " + std::to_string(n);
        return error.c_str();
    }
    while (stacks.size() < n) stacks.emplace_back(new char[STACK_BYTES]);
    if (n != threads.size()) threads.assign(n, {});
    warps.assign((n + 31) / 32, {});
    dynamic_shared.assign((shared_bytes + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t), {});
    kernel = &body;
    std::mt19937 random(seed);  // seed 0: threads in their natural order
    std::vector<uint64_t> order((size_t)grid[0] * grid[1] * grid[2]);  // blocks may come in any order, too
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    if (seed != 0) std::shuffle(order.begin(), order.end(), random);
    for (uint64_t i : order) {
        block_idx = {(unsigned)(i % grid[0]), (unsigned)(i / grid[0] % grid[1]), (unsigned)(i / grid[0] / grid[1])};
        run_block(random, seed != 0);
        if (!error.empty()) break;
    }
    return error.c_str();
}

// ---- how Python calls a kernel: an array of pointers to arguments, as cuLaunchKernel has it ---------------------------
template <class... A, size_t... I>
const char* launch(void (*k)(A...), const unsigned* grid, const unsigned* block, size_t shared_bytes, unsigned seed,
                   void** arguments, std::index_sequence<I...>) {
    return run(grid, block, shared_bytes, seed, [=] { k(*reinterpret_cast<std::remove_const_t<A>*>(arguments[I])...); });
}
template <class... A>
const char* launch(void (*k)(A...), const unsigned* grid, const unsigned* block, size_t shared_bytes, unsigned seed,
                   void** arguments) {
    return launch(k, grid, block, shared_bytes, seed, arguments, std::index_sequence_for<A...>{});
}
}  // namespace emu

// ---- numbers of 16 bits ---------------------------------------------------------------------------------------------
namespace emu {
static inline float float_of_bits(uint32_t u) {
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}
static inline uint32_t bits_of_float(float f) {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    return u;
}
#if defined(__FLT16_MANT_DIG__) && !defined(EMU_SOFT_HALF)
static inline float half_to_float(uint16_t h) {
    _Float16 x;
    std::memcpy(&x, &h, 2);
    return (float)x;
}
static inline uint16_t float_to_half(float f) {
    _Float16 x = (_Float16)f;
    uint16_t h;
    std::memcpy(&h, &x, 2);
    return h;
}
#else  // compilers before GCC 12 have no _Float16
static inline float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest >= 0x7c00) return float_of_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);  // infinity and NaN
    float size = float_of_bits(rest << 13) * 0x1p112f;  // the exponent's bias is 15 and becomes 127
    return sign ? -size : size;
}
static inline uint16_t float_to_half(float f) {
    uint32_t u = bits_of_float(f), sign = u >> 16 & 0x8000;
    u &= 0x7fffffff;
    if (u > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (u >= 0x477ff000) return (uint16_t)(sign | 0x7c00);  // 65,520 and more rounds to infinity
    if (u < 0x38800000)  // subnormal: the addition rounds to multiples of 2^-24
        return (uint16_t)(sign | (bits_of_float(float_of_bits(u) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | ((u + 0xfff + (u >> 13 & 1) - 0x38000000) >> 13));
}
#endif
static inline float bfloat_to_float(uint16_t b) { return float_of_bits((uint32_t)b << 16); }
static inline uint16_t float_to_bfloat(float f) {
    uint32_t u = bits_of_float(f);
    if (f != f) return 0x7fff;
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);  // to nearest, ties to even
}
}  // namespace emu

struct __half {
    uint16_t bits;
    __half() = default;
    __half(float f) : bits(emu::float_to_half(f)) {}
    operator float() const { return emu::half_to_float(bits); }
};
struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float f) : bits(emu::float_to_bfloat(f)) {}
    operator float() const { return emu::bfloat_to_float(bits); }
};
typedef __half half;
typedef __nv_bfloat16 nv_bfloat16;
struct alignas(4) __half2 { __half x, y; };
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
typedef __half2 half2;
typedef __nv_bfloat162 nv_bfloat162;

#define EMU_VECTORS(T, name)                                                                                     \
    struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                                                 \
    struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; };                                 \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                                         \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMU_VECTORS(float, float)
EMU_VECTORS(int, int)
EMU_VECTORS(unsigned, uint)
EMU_VECTORS(unsigned short, ushort)
EMU_VECTORS(unsigned char, uchar)

inline float __half2float(__half h) { return h; }
inline __half __float2half(float f) { return {f}; }
inline __half __float2half_rn(float f) { return {f}; }
inline float2 __half22float2(__half2 h) { return {h.x, h.y}; }
inline __half2 __floats2half2_rn(float a, float b) { return {a, b}; }
inline __half2 __float22half2_rn(float2 f) { return {f.x, f.y}; }
inline float __bfloat162float(__nv_bfloat16 b) { return b; }
inline __nv_bfloat16 __float2bfloat16(float f) { return {f}; }
inline __nv_bfloat16 __float2bfloat16_rn(float f) { return {f}; }
inline float2 __bfloat1622float2(__nv_bfloat162 b) { return {b.x, b.y}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {a, b}; }

// ---- what a kernel can ask for ---------------------------------------------------------------------------------------
#define threadIdx (emu::self->index)
#define blockIdx emu::block_idx
#define blockDim emu::block_dim
#define gridDim emu::grid_dim
#define __syncthreads() emu::block_barrier(__FILE__, __LINE__)

inline void __syncwarp(unsigned mask = ~0u) { emu::warp_barrier(mask); }
inline void __threadfence() {}
inline void __threadfence_block() {}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    return emu::exchange(mask, value, (emu::lane() & ~(width - 1)) | (source & (width - 1)));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    unsigned l = emu::lane();
    return emu::exchange(mask, value, (l & (width - 1)) + by < (unsigned)width ? l + by : l);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    unsigned l = emu::lane();
    return emu::exchange(mask, value, (l & (width - 1)) >= by ? l - by : l);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with, int = 32) {
    return emu::exchange(mask, value, emu::lane() ^ with);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    unsigned result = 0;
    for (int i = 0; i < 32; ++i) {
        int one = emu::exchange(mask, predicate, i);
        if (mask >> i & 1) result |= (unsigned)(one != 0) << i;
    }
    return result;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }
inline unsigned __activemask() { return ~0u; }

// One thread runs at a time, so an ordinary read and write is atomic.
template <class T, class U> T atomicAdd(T* at, U by) { T old = *at; *at = old + (T)by; return old; }
template <class T, class U> T atomicMax(T* at, U with) { T old = *at; *at = std::max(old, (T)with); return old; }
template <class T, class U> T atomicMin(T* at, U with) { T old = *at; *at = std::min(old, (T)with); return old; }
template <class T, class U> T atomicExch(T* at, U with) { T old = *at; *at = (T)with; return old; }
template <class T> T atomicCAS(T* at, T expected, T with) { T old = *at; if (old == expected) *at = with; return old; }
template <class T> T __ldg(const T* at) { return *at; }

using std::max;
using std::min;
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __int_as_float(int i) { return emu::float_of_bits((uint32_t)i); }
inline float __uint_as_float(unsigned i) { return emu::float_of_bits(i); }
inline int __float_as_int(float f) { return (int)emu::bits_of_float(f); }
inline unsigned __float_as_uint(float f) { return emu::bits_of_float(f); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
#undef INFINITY  // NVRTC has no <math.h>, so neither of the two exists there
#undef NAN

// ---- what a library tells about itself ---------------------------------------------------------------------------------
namespace emu {
// A letter for the kind of number and its bytes: f4, h2 (float16), b2 (bfloat16), i4, u8, or r16 for anything else.
template <class T>
std::string code() {
    const char* kind = std::is_same<T, __half>::value            ? "h"
                       : std::is_same<T, __nv_bfloat16>::value   ? "b"
                       : std::is_floating_point<T>::value        ? "f"
                       : !std::is_integral<T>::value             ? "r"
                       : std::is_signed<T>::value                ? "i"
                                                                 : "u";
    return kind + std::to_string(sizeof(T));
}
template <class T>
struct Describe {  // by value
    static std::string text() { return code<std::remove_cv_t<T>>(); }
};
template <class T>
struct Describe<T*> {  // * may be written to, & is only read
    static std::string text() { return (std::is_const<T>::value ? "&" : "*") + code<std::remove_cv_t<T>>(); }
};
template <class... A>
std::string describe(void (*)(A...)) {
    std::string all;
    ((all += Describe<std::remove_const_t<A>>::text() + " "), ...);
    return all;
}
}  // namespace emu

#define EMU_EXPORT(k)                                                                                                  \
    extern "C" const char* emu_launch_##k(const unsigned* grid, const unsigned* block, size_t shared_bytes,            \
                                          unsigned seed, void** arguments) {                                           \
        return emu::launch(k, grid, block, shared_bytes, seed, arguments);                                             \
    }                                                                                                                  \
    extern "C" const char* emu_describe_##k() {                                                                        \
        static std::string text = emu::describe(k);                                                                    \
        return text.c_str();                                                                                           \
    }

// A shared array becomes NaN when the first thread of a block comes by its declaration.
#define EMU_POISON(name)                                                                                               \
    {                                                                                                                  \
        static unsigned poisoned = 0;                                                                                  \
        if (poisoned != emu::block_number) {                                                                           \
            poisoned = emu::block_number;                                                                              \
            std::memset((void*)&name, 0xff, sizeof(name));                                                             \
        }                                                                                                              \
    }

extern "C" void emu_drop_barrier(const char* file, int line) {
    emu::dropped_file = file;
    emu::dropped_line = line;
}

// What the last launch met: the warp operations, then a line for each place with a barrier: line, threads, file.
extern "C" const char* emu_report() {
    emu::report_text = std::to_string(emu::warp_operations) + "\n";
    for (auto& one : emu::barriers)
        emu::report_text += std::to_string(one.first.second) + " " + std::to_string(one.second) + " " + one.first.first + "\n";
    return emu::report_text.c_str();
}
