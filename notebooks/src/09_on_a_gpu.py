# %% [markdown]
# # 09. The same forward pass on a GPU
#
# **A GPU is hundreds of times as fast as your processor. Why is a forward pass on it, word for word the same, so
# slow?**
#
# You will run the textbook file of notebook 03, unchanged, on a device that counts every call; meet the third ceiling;
# write one kernel of your own and launch it thread by thread; and hunt a bug that changes with the weather.
#
# About an hour, of which the machine computes about one minute. Two cores, 1.5 GB of memory. **No GPU needed**: where
# there is none, kernels run on an emulator that needs a C++ compiler, and every figure of a GPU's *speed* is a
# prediction from a datasheet and says so. With a GPU and CuPy, the same cells use it.

# %%
# Where minifer is installed, this cell does nothing. In a bare environment it installs it from the clone this notebook
# lies in; on Colab, put "git+" and the address of the repository in place of "..".
import importlib.util
import subprocess
import sys

SOURCE = ".."
if importlib.util.find_spec("minifer") is None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", SOURCE], check=True)

# %%
import matplotlib.pyplot as plt
import numpy as np

from minifer.apps import notebook
from minifer.apps.notebook import digits, show
from minifer.apps.testing.kernel_cpu import why_no_compiler
from minifer.device import select_device, why_no_gpu

rng = np.random.default_rng(0)
notebook.style()
notebook.summary()
HAS_GPU, HAS_COMPILER = why_no_gpu() is None, why_no_compiler() is None
print("A GPU was met: kernels run on it too." if HAS_GPU else f"No GPU was met: {why_no_gpu()}.")
print("Kernels can run on the CPU, thread by thread." if HAS_COMPILER else f"No emulator: {why_no_compiler()}.")

# %%
show(
    notebook.flow(
        [
            ("Python", "decides what comes next"),
            ("launch()", "a few microseconds each"),
            ("queue", "the host does not wait"),
            ("kernel()", "thousands of threads"),
            ("copy back", "now the host waits"),
        ],
        back="once per array operation, or once per kernel, or once per step",
    ),
    "Figure 1. The host only writes orders; how many it has to write decides more than how fast they are carried out.",
    "Five boxes in a row: Python, launch, queue, kernel, copy back. An arrow leads from the last back to the first, "
    "labelled: once per array operation, or once per kernel, or once per step.",
)

# %% [markdown]
# ## See
#
# First the finished thing: `minifer/ops/reference.py`, the file you know, on another device. It never says `np`. It
# asks each array where it comes from and uses *that* module: NumPy's here, CuPy's on a GPU. Without a GPU the device is
# called `strict`: a stand-in for CuPy that runs on the CPU and refuses whatever a GPU would refuse.

# %%
from minifer import LLM, SamplingParams

DEVICE = "cuda" if HAS_GPU else "strict"
PROMPT, greedy = "Once upon a time", SamplingParams(temperature=0, max_tokens=12)
small = {"room": "reference", "num_blocks": 16, "max_model_len": 128}
told = {}
for name in ("cpu", DEVICE):
    llm = LLM("tiny", device=name, **small)
    told[name] = llm.generate([PROMPT], greedy)[0]
    print(f"{name:<7} {type(llm.weights.layers[0].wq).__name__:<12} {told[name].text!r}")
print("the same tokens:", told["cpu"].token_ids == told[DEVICE].token_ids)

# %% [markdown]
# Not a line of the file was changed. So the port is done? It is *right*. Whether it is fast is another matter.
#
# ## Predict
#
# 1. To make one token, the textbook forward pass calls the device once per array operation. SmolLM2 has 30 layers. How
#    many calls are that?
# 2. An H100 reads this model's weights (16 bits each) from its memory in some microseconds. Each call costs about 5
#    microseconds before anything runs. What share of the step, in percent, is calling?
# 3. A kernel of 128 threads forgets one barrier. Run it with its threads in eight different orders. In how many of them
#    is the answer wrong?

# %%
guesses = notebook.Guesses()
guesses.predict("calls of the device for one token", None)
guesses.predict("share of calling on an H100, percent", None)
guesses.predict("wrong orders of eight", None)

# %% [markdown]
# ## Run
#
# ### 1. What the strict device sees
#
# The stand-in is slow, and that is fine: it is there to *count*, and to say no. Watch it refuse a mistake that NumPy
# would let pass and that costs a GPU dearly: an array on the host and one on the device in the same operation.

# %%
from minifer.apps.testing.strict_machine import machine
from minifer.ops import reference

device = select_device("strict")
x, gain = device.asarray(np.ones((1, 576), np.float32)), device.asarray(np.ones(576, np.float32))
try:
    x + np.ones(576, np.float32)
except Exception as error:
    print("refused:", type(error).__name__)

for name, call in (("rms_norm", lambda: reference.rms_norm(x, gain, 1e-5)),
                   ("softmax", lambda: reference.softmax(x)),
                   ("swiglu", lambda: reference.swiglu(x, x))):  # fmt: skip
    machine.reset()
    call()
    print(f"{name:<9} {machine.launches:>3} launches, {machine.allocations:>3} new arrays, {machine.syncs} waits")

# %% [markdown]
# One RMS norm, a line of mathematics, is a handful of orders: square, mean, add, root, divide, multiply. Each reads its
# input from memory and writes its result back, for the next to read it again.
#
# Now a whole step of the real model.

# %%
models = notebook.choose_models()
llm = LLM(models.speed, device="strict", **small)
print(models.note or f"{models.text} on the strict device, reference room")
layers = llm.config.num_hidden_layers
per_step = []
for _ in llm.stream([1, 2, 3], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)):
    per_step.append(machine.launches)
    machine.reset()
array_calls = per_step[-1]
print(f"a decode step: {array_calls} calls, that is {digits(array_calls / layers)} in each of {layers} layers")
guesses.reveal("calls of the device for one token", array_calls)

# %% [markdown]
# ### 2. The third ceiling
#
# What do these calls cost? First the two ceilings you know from notebook 06, from the datasheet; then the third.
# **Everything in the next figure is a prediction** from datasheets and from one assumption, 5 microseconds per call
# (where a GPU was met, its own launch is measured and used instead).


# %%
def measured_launch_us(cupy, count=2000):
    """Microseconds that one small operation costs on this GPU."""
    one = cupy.zeros(1, dtype=cupy.float32)
    first, last = cupy.cuda.Event(), cupy.cuda.Event()
    first.record()
    for _ in range(count):
        cupy.add(one, one, out=one)
    last.record()
    last.synchronize()
    return 1e3 * cupy.cuda.get_elapsed_time(first, last) / count


# %%
from minifer.apps.simulate.machine import model_config
from minifer.model.cost import num_parameters
from minifer.roofline.predict import datasheet_roof

launch_us = measured_launch_us(select_device("cuda").xp) if HAS_GPU else 5.0
h100 = datasheet_roof("h100", "bfloat16")
config = llm.config if models.speed == "tiny" else model_config("random:smollm2-135m")
read_us = 1e6 * 2 * num_parameters(config) / h100.read_bytes_per_s
calling = 100 * array_calls * launch_us / (array_calls * launch_us + read_us)
print(f"reading {digits(2 * num_parameters(config) / 1e6)} MB takes {digits(read_us)} us by the datasheet; ", end="")
print(f"{array_calls} calls of {digits(launch_us)} us each take {digits(array_calls * launch_us)} us")
guesses.reveal("share of calling on an H100, percent", calling)
print("(from datasheet figures: a prediction, and the weights are read only once)")

# %%
kernel_calls = 10 * layers + 4  # what minifer's own kernels need for a step, see minifer/ops/cuda_decode.py
plans = {"array operations": array_calls, "kernels": kernel_calls, "one graph": 1}
figure, ax = plt.subplots(figsize=(8, 3))
for place, calls in enumerate(plans.values()):
    ax.barh(place, calls * launch_us, color=notebook.ORANGE, edgecolor="black", label="calling" if not place else None)
    ax.text(calls * launch_us * 1.15, place, f"{calls:,} calls", va="center")
ax.axvline(read_us, color=notebook.BLUE, linestyle="--", label="reading the weights")
ax.set(xscale="log", yticks=range(3), yticklabels=plans, xlabel="microseconds for one token (prediction)")
ax.set_xlim(1, 12 * array_calls * launch_us)
ax.invert_yaxis()
ax.legend(loc="lower right")
show(
    figure,
    "Figure 2. Predicted from a datasheet, not measured: the time to call, beside the time to read the weights.",
    f"Bars on a logarithmic axis. {array_calls} calls by array operations take {digits(array_calls * launch_us)} "
    f"microseconds, {kernel_calls} kernels {digits(kernel_calls * launch_us)}, a graph {digits(launch_us)}; a dashed "
    f"line marks the {digits(read_us)} microseconds for reading the weights.",
)

# %% [markdown]
# The dashed line is the end of the race that notebook 06 was about. With array operations we do not even reach its
# start: the device waits for orders nearly all the time. There are two ways down. **Write kernels**, so that one order
# does the work of ten. And **record a graph**: let the GPU remember the whole list of orders, and give one for all.
# (Inside a graph the kernels still begin one after the other, about a microsecond each on the device. That is not in
# the picture; a measurement on a GPU, `minifer bench gpu`, has it.)
#
# On the strict device both can be counted (the numbers are of `tiny`, whose kernels are compiled first).

# %%
if HAS_COMPILER:
    fast = LLM("tiny", device="strict", room="cuda", dtype="float32", num_blocks=16, max_model_len=128)
    fast.generate([PROMPT], greedy)  # the first time records the graph
    machine.reset()
    answer = fast.generate([PROMPT], greedy)[0]
    steps = len(answer.token_ids) - 1
    print(
        f"{steps} decode steps: {machine.graph_launches} graphs launched, with {machine.graph_nodes} kernels in them, "
    )
    print(f"{digits(machine.graph_nodes / machine.graph_launches)} each; the same tokens as NumPy's: ", end="")
    print(answer.token_ids == told["cpu"].token_ids)
else:
    print(f"not here: {why_no_compiler()}")

# %% [markdown]
# ### 3. One kernel
#
# A kernel is the body of a loop whose loop is gone. Each thread gets its coordinates and does *one* element. This is
# the whole file `swiglu.cu`, the gate of the feed-forward layer:

# %%
from minifer.apps.testing.kernel_sources import Build, kernel_files
from minifer.apps.testing.kernel_specs import SPECS, make_case

files = kernel_files()
print(files["swiglu.cu"])

# %% [markdown]
# Threads come in blocks of a fixed size, here 256. A row has 300 numbers. So two blocks are needed for each row, and
# the second has threads to spare. Who does what?

# %%
rows, width, block = 3, 300, 256
columns = np.arange(2 * block)
owner = np.where(columns < width, columns // block + 2 * np.arange(rows)[:, None], np.nan)
figure, ax = plt.subplots(figsize=(8, 2.4))
ax.set_facecolor("#DDDDDD")
ax.imshow(owner, aspect="auto", cmap="cividis", interpolation="nearest")
for row in range(rows):
    for half in (0, 1):
        ax.text((128, 278)[half], row, f"block ({half}, {row})", ha="center", va="center", fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip
ax.text(406, 1, "threads with nothing to do:\nif (column >= width) return;", ha="center", va="center", fontsize=9)
ax.set(xlabel="column = blockIdx.x * 256 + threadIdx.x", ylabel="row = blockIdx.y", yticks=range(rows))
ax.grid(visible=False)
show(
    figure,
    "Figure 3. Six blocks of 256 threads for 3 rows of 300 numbers, and the threads that must not touch anything.",
    "A map of 3 rows and 512 columns. In each row columns 0 to 255 belong to one block, 256 to 299 to a second one in "
    "another colour, and 300 to 511 are grey: threads that have nothing to do and return at once.",
)

# %%
from minifer.apps.testing.kernel_run import changed_kernels, run_on_cpu, run_on_device


def try_kernel(name, files, seeds=(1, 2), shapes=None):
    """Run a kernel in all its shapes, each with threads in shuffled orders, beside NumPy in float64."""
    wrong = done = 0
    for shape in SPECS[name].shapes[:shapes]:
        for seed in seeds:
            case = make_case(name, Build(), shape, seed=seed)
            if HAS_GPU:
                outcomes = run_on_device(case, select_device("cuda").xp, files)
            else:
                outcomes, _ = run_on_cpu(case, seed=seed, kernels=changed_kernels(case, files))
            done += 1
            if bad := [outcome for outcome in outcomes if not outcome.fine]:
                wrong += 1
                print(f"  {dict(shape)}: {bad[0]}") if wrong == 1 else None
    print(f"{name}: {done - wrong} of {done} trials right")


if HAS_GPU or HAS_COMPILER:
    try_kernel("swiglu", files)

# %% [markdown]
# (In a terminal: `minifer kernel run swiglu --seed 3`, and `minifer kernel list` for all of them.)
#
# ### 4. In what order?
#
# A block's threads run in no order that you may rely on. They can exchange numbers through *shared memory*, and
# `__syncthreads()` is the only promise about time: nobody goes on before everybody has come. Here is a kernel that
# moves everything one place to the right, without that line. The emulator can run its threads in any order you like;
# order 0 is the natural one.

# %%
SHIFT = """extern "C" __global__ void shift(const float* x, float* y) {
    __shared__ float kept[128];
    kept[threadIdx.x] = x[threadIdx.x];
    BARRIER
    y[threadIdx.x] = threadIdx.x == 0 ? 0.0f : kept[threadIdx.x - 1];
}"""


def wrong_places(source, seed):
    """How many of 128 numbers are wrong when the threads run in order `seed`."""
    from minifer.apps.testing.kernel_cpu import compile_kernels

    x, y = np.arange(1, 129, dtype=np.float32), np.full(128, np.nan, np.float32)
    compile_kernels(source).launch("shift", (1,), (128,), (x, y), seed=seed)
    return int((y != np.concatenate([[0], x[:-1]])).sum())


if HAS_COMPILER:
    without = [wrong_places(SHIFT.replace("BARRIER", ""), seed) for seed in range(8)]
    with_it = [wrong_places(SHIFT.replace("BARRIER", "__syncthreads();"), seed) for seed in range(8)]
    print("wrong numbers without the barrier, orders 0 to 7:", without)
    print("with it:                                         ", with_it)
    guesses.reveal("wrong orders of eight", sum(n > 0 for n in without))
else:
    print(f"not here: {why_no_compiler()}")

# %% [markdown]
# In the natural order every thread finds its left neighbour's number, by luck, and a test that only ever runs that
# order will pass for years. This is why minifer's kernels are tested with shuffled threads: a race is not a number that
# is wrong, it is a number that is *sometimes* right.

# %% [markdown]
# ## Explain
#
# **Three ceilings.** A step takes at least as long as its reading (bytes over bandwidth), at least as long as its
# arithmetic (FLOPs over peak), and at least as long as its **calling** (calls times a few microseconds, however little
# they do). On your processor the third is low, since a call of NumPy is cheap beside the work. A GPU does the work a
# hundred times as fast and takes orders no faster; so for a small model at batch 1, everything is calling.
#
# The queue in figure 1 explains the rest. The host may run ahead and fill it, so calls overlap with work; but whoever
# *asks for a number* (prints it, branches on it, copies it back) must wait until the queue is empty. One hidden wait
# per layer costs more than a slow kernel. That is why the strict device counts waits too.
#
# Which models suffer? Divide: reading time grows with the model, calling time only with its layers.

# %%
GPUS = {"t4": "float16", "l4": "bfloat16", "a100": "bfloat16", "h100": "bfloat16"}
print("predicted from datasheets: microseconds to read the weights of this model once, and to call")
for name, dtype in GPUS.items():
    reading = 1e6 * 2 * num_parameters(config) / datasheet_roof(name, dtype).read_bytes_per_s
    ratio = array_calls * launch_us / reading
    print(f"{name:<6} reading {digits(reading):>6}, array operations {digits(array_calls * launch_us)}", end="")
    print(f" ({digits(ratio)} times), kernels {digits(kernel_calls * launch_us)}, graph {digits(launch_us)}")

# %% [markdown]
# ## Build
#
# **The array operations first** are done: you wrote them in notebook 03, and they ran here. Now one kernel.
#
# **Task 9.1, `swiglu`** (40 minutes). Close your eyes to the file above and write it from its contract: for every row
# and column, out = silu(gate) * up, with silu(z) = z / (1 + exp(-z)). A row of `gate_up` is `2 * width` long, the gate
# first and then the up. Each thread owns one column of one row, or nothing. `to_float` reads a number, `from_float`
# makes one to write, `__expf` is the device's exponential.
#
# <details><summary>Hint 1</summary>Which column? <code>blockIdx.x * blockDim.x + threadIdx.x</code>. Which row?
# <code>blockIdx.y</code>.</details>
# <details><summary>Hint 2</summary>The last block has threads beyond the width (figure 3). They must not touch
# anything: around each array the test lays NaN and looks whether it is still there.</details>
# <details><summary>Hint 3</summary>The up of a column stands <code>width</code> places behind its gate. Compute in
# float, round once at the end.</details>

# %%
MY_SWIGLU = """#include "common.cuh"

extern "C" __global__ void swiglu(const act_t* gate_up, act_t* out, int width) {
    // task 9.1: your lines here
}
"""

if HAS_GPU or HAS_COMPILER:
    try_kernel("swiglu", files | {"swiglu.cu": MY_SWIGLU})
else:
    print(f"not here: {why_no_compiler()}")

# %% [markdown]
# (`minifer labs start 9` and `minifer labs run 9` do the same with a file.)
#
# A kernel that is right is still free to be slow. When yours passes, ask: which neighbours read neighbouring memory?
# Threads 0, 1, 2, ... of a warp read columns 0, 1, 2, ...: 32 numbers in one sweep. Had we given each thread a *row*
# instead, the same arithmetic would fetch 32 lines of memory to use one number of each.
#
# ## Break
#
# Choosing the likeliest token: each warp of 32 threads finds the best of its share, one thread of each warp writes that
# into shared memory, then all look at what the warps have found. One line of this has been lost.

# %%
text = files["next_token.cuh"]
NOTE = "values[threadIdx.x / 32] = mine.value, indices[threadIdx.x / 32] = mine.index;\n"
broken = files | {"next_token.cuh": text.replace(NOTE + "    __syncthreads();\n", NOTE)}
assert broken != files
lines = broken["next_token.cuh"].splitlines()
start = next(i for i, line in enumerate(lines) if "Top block_top(" in line)
print("\n".join(lines[start : start + 21]))

# %% [markdown]
# The symptom: **greedy decoding, the same prompt, and every run writes another text**. On the colleague's GPU it was
# fine all week. Here are the tokens that the kernel takes for the same nine rows of logits, with its threads in eight
# orders. A dot is the right token.


# %%
def chosen_tokens(files, seed):
    """The tokens that `argmax_advance` takes for nine rows of logits, threads in order `seed`; and the right ones."""
    case = make_case("argmax_advance", Build(), seed=1)
    (launch,), kernels = case.launches, changed_kernels(case, files)
    there = {name: None if array is None else array.copy() for name, array in case.buffers.items()}
    args = [there[a] if isinstance(a, str) else a for a in launch.args]
    kernels[launch.kernel].launch(launch.kernel, launch.grid, launch.block, args, seed=seed)
    return there["tokens"].tolist(), case.expected["tokens"].tolist()


if HAS_COMPILER:
    for name, source in (("without the line", broken), ("the reference", files)):
        for seed in range(6):
            got, right = chosen_tokens(source, seed)
            words = " ".join("   ." if a == b else f"{a:>4}" for a, b in zip(got, right, strict=True))
            print(f"{name:<17} order {seed}: {words}")
else:
    print(f"not here: {why_no_compiler()}")

# %% [markdown]
# Which line is missing, and between which two lines? What does a thread read that nobody has written yet? (The poison
# in fresh shared memory makes such a read conspicuous here. A GPU would hand you what the last block left there, often
# the right number.)
#
# <details><summary>The bug</summary>
#
# Between writing <code>values[...]</code> and reading them there must be a <code>__syncthreads();</code>. Without it a
# warp that is quick looks at places where slower warps have not written yet. Within a warp nothing can go wrong, so a
# block of 32 threads is always right; and a small vocabulary on an idle GPU lets all warps arrive together. Load,
# another GPU, another driver: another order, another text.
#
# </details>
#
# `minifer kernel run argmax_advance --mutant argmax_without_barrier` shows the same in a terminal, and
# `minifer kernel run rms_norm --drop-barrier 1` leaves out any barrier you like.

# %% [markdown]
# ## Compare
#
# The same kernels in engines that serve millions (names as in their main branches of 2026; files move now and then):
#
# | | file | look for |
# |---|---|---|
# | **swiglu** in vLLM | `csrc/activation_kernels.cu` | `silu_and_mul` |
# | llama.cpp | `ggml/src/ggml-cuda/unary.cu` | `swiglu` |
# | Ollama | `ml/backend/ggml/ggml/src/ggml-cuda/` | the same files |
# | **rms_norm** in vLLM | `csrc/layernorm_kernels.cu` | `rms_norm_kernel` |
# | llama.cpp | `ggml/src/ggml-cuda/norm.cu` | `rms_norm_f32` |
# | **attention** in vLLM | `vllm/v1/attention/backends/flash_attn.py` | `FlashAttentionImpl` |
# | llama.cpp | `ggml/src/ggml-cuda/fattn.cu` | `ggml_cuda_flash_attn_ext` |
# | **graphs** in vLLM | `vllm/compilation/cuda_graph.py` | `CUDAGraphWrapper` |
# | llama.cpp | `ggml/src/ggml-cuda/ggml-cuda.cu` | `cudaGraphLaunch` |

# %% [markdown]
# Start with vLLM's `silu_and_mul`. You will recognise the formula and the `2 * d` of the row. The rest of that file is
# about reading 16 bytes at a time. And all three engines record graphs for decode: the third ceiling is everybody's.

# %% [markdown]
# ## Five questions
#
# <details><summary>1. A kernel is made twice as fast, and a token takes as long as before. Why?</summary>The device was
# waiting for orders. Fewer calls would help (a fused kernel, a graph), not faster ones.</details>
#
# <details><summary>2. Batch 64 instead of 1: what happens to the share of calling?</summary>The calls stay as many, the
# work grows, so the share falls. Calling is a problem of small steps.</details>
#
# <details><summary>3. Why does one <code>print(logits[0])</code> in the middle of the forward pass make everything
# slower?</summary>The host must wait until the queue is empty to know the number, and the queue then stands empty while
# the host goes on.</details>
#
# <details><summary>4. Why are the threads beyond the width not simply left out of the launch?</summary>Blocks all have
# the same size. The last one overlaps the edge, and an <code>if</code> is cheaper than a second kernel.</details>
#
# <details><summary>5. A test passes a thousand times on your GPU. Is the kernel free of races?</summary>It has been
# free of bad luck. Change the order of threads, the size of blocks, the GPU; or prove that between each write and each
# read of another thread's number there is a barrier.</details>

# %% [markdown]
# ## Three numbers to write down

# %%
print(f"1. calls for one token: {array_calls} by array operations, {kernel_calls} kernels, 1 graph")
print(f"2. reading the weights on an H100, by the datasheet: {digits(read_us)} us (a prediction)")
print(f"3. a call: {digits(launch_us)} us, {'measured here' if HAS_GPU else 'assumed, since no GPU was met'}")
