# %% [markdown]
# # 06. Roofline: why decode is slow
#
# **Can you say how fast a model will be on a machine before you have run it?**
#
# Yes, with two measurements and some counting, and you will be off by little. Better: where you *are* off, the gap has
# a name. You will measure what your machine can do, count what a step has to do, predict, measure, and look at the
# ratio. It is the way of thinking behind every serious speedup in this field.
#
# About an hour, of which the machine computes about one minute. Two cores, 1.5 GB of memory, no GPU.

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
from minifer.apps.notebook import check, digits, show

rng = np.random.default_rng(0)
notebook.style()
notebook.summary()

# %%
show(
    notebook.flow(
        [
            ("count()", "FLOPs and bytes"),
            ("measure()", "the two ceilings"),
            ("predict()", "the longer of two times"),
            ("run()", "the real step"),
            ("ratio", "what is left to explain"),
        ],
        back="explain it, or mend it",
    ),
    "Figure 1. Predict, measure, and look at the ratio.",
    "Five boxes in a row: count, measure, predict, run, ratio. An arrow leads from the last back to the first, "
    "labelled: explain it, or mend it.",
)

# %% [markdown]
# ## See
#
# Two numbers describe a machine for our purposes: how many bytes it can read per second, and how many FLOPs
# (floating-point operations) it can do per second. Both are measured here, on yours, with all its cores. Reading is
# measured over half a gigabyte, about the size of the model, because small arrays stay in a cache and flatter.

# %%
from minifer.roofline import measure_ceilings

ceilings = measure_ceilings(512 << 20)
print(f"reading    {digits(ceilings.read_bytes_per_s / 1e9)} GB/s over {ceilings.working_set_bytes >> 20} MiB")
print(f"arithmetic {digits(ceilings.flops_per_s / 1e9)} GFLOP/s, {ceilings.threads} threads")
print(f"the ridge  {digits(ceilings.ridge)} FLOPs per byte")

# %% [markdown]
# The third line is the first divided into the second, and it is the line to remember. **While one number of four bytes
# arrives, this machine could do four times that many operations.** Work that does fewer per byte leaves the arithmetic
# idle. Work that does more leaves the memory idle. That is the whole of the roofline.
#
# ## Predict
#
# For SmolLM2 with 135 million weights of four bytes, on the machine above. Put a number in place of each `None`.
#
# 1. How many tokens per second can a request alone be given at the very most?
# 2. How many FLOPs does a decode step do for each byte that it reads?
# 3. From which batch size on does it pay no longer to add requests to a decode step, since arithmetic is the limit?

# %%
guesses = notebook.Guesses()
guesses.predict("most tokens per second, alone", None)
guesses.predict("FLOPs per byte in decode", None)
guesses.predict("batch at which linears turn compute-bound", None)

# %% [markdown]
# ## Run
#
# ### Count
#
# `step_cost` derives from the shape of the model alone what each operation of a step must do. Two steps: a prompt of
# 256 tokens, and one token behind 256 others.

# %%
from minifer.model.cost import Cost, Work, num_parameters, step_cost
from minifer.model.load import load_model

models = notebook.choose_models()
loaded = load_model(models.speed)
c = loaded.config
print(models.note or f"{models.speed}: {num_parameters(c):,} parameters")
for name, work in (("prefill 256", Work(256, 256)), ("decode at 256", Work(1, 257))):
    parts = step_cost(c, [work])
    total_cost = sum(parts.values(), Cost())
    print(f"{name:<14} {digits(total_cost.flops / 1e9):>5} GFLOP, {digits(total_cost.bytes / 1e6):>5} MB,", end=" ")
    print(f"{digits(total_cost.intensity)} FLOPs per byte")
guesses.reveal("FLOPs per byte in decode", total_cost.intensity)

# %% [markdown]
# Half a FLOP per byte, and there is nothing mysterious in it: a weight is four bytes, and a single token needs one
# multiplication and one addition with it. Two divided by four. Every model of every size has this number in decode at
# batch 1 with 32 bits. The prompt's 256 tokens share the same bytes, so theirs is far higher,
# as the first line says.
#
# ### Predict, in code

# %%
from minifer.roofline.predict import Roof, linears_turn_compute_bound, predict_step, total

roof = Roof("this machine", ceilings.flops_per_s, ceilings.read_bytes_per_s)
best = total(predict_step(c, [Work(1, 257)], roof))
print(f"decode at 256: {digits(1e3 * best.seconds)} ms at least, limited by {best.limiter}")
guesses.reveal("most tokens per second, alone", 1 / best.seconds)
turning = linears_turn_compute_bound(c, roof)
print(turning.why)
guesses.reveal("batch at which linears turn compute-bound", turning.batch or 0)

# %% [markdown]
# ### Measure
#
# The same steps for real, in minifer's tuned room, with a timer around each class of operations.

# %%
from minifer.device import select_device
from minifer.ops import open_room
from minifer.roofline.measure import Step, measure_step

device = select_device("cpu")
ops = open_room("cpu", c, device)
weights = ops.prepare(loaded.weights)
steps = [Step(1, 256, 256), Step(1, 1, 256), Step(2, 1, 256), Step(4, 1, 256), Step(8, 1, 256), Step(16, 1, 256)]
measured = [measure_step(c, weights, ops, device, step, repeats=3) for step in steps]
for m in measured:
    predicted = total(predict_step(c, m.step.work, roof)).seconds
    ratio = m.median_s / predicted
    print(f"{m.step!s:<17} predicted {digits(1e3 * predicted):>6} ms, ", end="")
    print(f"measured {digits(1e3 * m.median_s):>6} ms, {digits(ratio)} times")

# %% [markdown]
# The last column is why we do this. Near 1: there is nothing left to gain on this machine, whoever writes the code. At
# 2, half of the time has gone into something that was neither counted reading nor counted arithmetic.
#
# Now the picture. To the right: more FLOPs per byte. Upwards: more FLOPs per second. Nothing can be above the roof.

# %%
from minifer.roofline.predict import CLASSES

LOOKS = {"linears": ("o", notebook.BLUE), "attention": ("s", notebook.VERMILLION), "head": ("^", notebook.GREEN)}


def draw_roof(ax):
    """The slanted roof of reading, the flat roof of arithmetic, and the ridge between them."""
    x = np.geomspace(0.1, 1000, 200)
    ax.loglog(x, np.minimum(x * ceilings.read_bytes_per_s, ceilings.flops_per_s) / 1e9, color=notebook.BLACK)
    ax.axvline(ceilings.ridge, color=notebook.GREY, linestyle=":")
    ax.annotate(f"ridge {digits(ceilings.ridge)}", (ceilings.ridge * 1.1, 0.3))
    ax.set(xlabel="FLOPs per byte", ylabel="GFLOP/s", ylim=(0.2, 6 * ceilings.flops_per_s / 1e9))


def points(m):
    """For each class of operations of a measured step: FLOPs per byte, GFLOP/s."""
    costs = step_cost(c, m.step.work)
    for name in LOOKS:
        cost = sum((costs[op] for op in CLASSES[name]), Cost())
        yield name, cost.intensity, cost.flops / m.parts[name] / 1e9


# %%
figure, ax = plt.subplots(figsize=(8, 4.6))
draw_roof(ax)
for m in (measured[0], measured[1], measured[4]):
    face = {"prefill": None, "decode": "white"}[m.step.phase]
    for name, x, y in points(m):
        marker, colour = LOOKS[name]
        ax.plot(x, y, marker, color=colour, markerfacecolor=face or colour, markersize=8)
        if m is measured[4]:
            ax.annotate("8", (x, y), (5, 4), textcoords="offset points", fontsize=9)
for name, (marker, colour) in LOOKS.items():
    ax.plot([], [], marker, color=colour, label=f"{name} (filled: prefill; open: decode, 8: batch 8)")
ax.legend(loc="upper left", fontsize=9)
linears = {m.step.phase: {n: (x, y) for n, x, y in points(m)}["linears"] for m in measured[:2]}
show(
    figure,
    f"Figure 2. Decode sits under the slanted roof, prefill under the flat one ({models.speed}).",
    f"Log-log roofline with a ridge at {digits(ceilings.ridge)} FLOPs per byte. Linear layers of a decode step lie at "
    f"{digits(linears['decode'][0])} FLOPs per byte and {digits(linears['decode'][1])} GFLOP/s, those of prefill at "
    f"{digits(linears['prefill'][0])} and {digits(linears['prefill'][1])}.",
)

# %% [markdown]
# Follow the open marks from batch 1 to batch 8. The linear layers walk to the right: eight tokens for each weight read.
# **Attention does not move.** Every sequence brings its own keys and values, so there is nothing to share: at any batch
# size attention stays under the slanted roof. That is why long contexts are dear even on the busiest server.
#
# ### Three regimes
#
# So a step is not one dot but a *sum*: the longer of two times for the linears, plus reading time for attention. Draw it
# over the batch, beside what was measured.

# %%
batches = np.arange(1, 17)
decode = measured[1:]
sum_ms = [1e3 * total(predict_step(c, [Work(1, 256)] * int(b), roof)).seconds for b in batches]
figure, ax = plt.subplots()
ax.plot([m.step.batch for m in decode], [1e3 * m.median_s for m in decode], "o", label="measured")
ax.plot(batches, sum_ms, "--", label="predicted: reading and arithmetic")
ax.set(xlabel="sequences in the batch, 256 tokens each", ylabel="ms for a step", xlim=(0, None), ylim=(0, None))
ax.legend()
show(
    figure,
    f"Figure 3. A decode step by batch size, and what reading and arithmetic alone would take ({models.speed}).",
    f"Measured steps from {digits(1e3 * decode[0].median_s)} milliseconds at batch 1 to "
    f"{digits(1e3 * decode[-1].median_s)} at batch 16, above a predicted line from {digits(sum_ms[0])} to "
    f"{digits(sum_ms[-1])}.",
)

# %% [markdown]
# What lies between the line and the dots is the third regime: **overhead**, calls that cost time whether or not there
# is work in them. It can be measured alone: take a model of the same number of layers that is so narrow that it has
# nothing to compute, and time its step.

# %%
from minifer.roofline.measure import null_overhead

overhead = null_overhead(c, "cpu", device)
calls_ms = 1e3 * sum(once for once, _ in overhead.values())
print(f"calls of a step: {digits(calls_ms)} ms, {digits(100 * calls_ms / (1e3 * decode[0].median_s))} % of decode 1")
tiny = load_model("tiny")
tiny_ops = open_room("cpu", tiny.config, device)
tiny_weights = tiny_ops.prepare(tiny.weights)
small = measure_step(tiny.config, tiny_weights, tiny_ops, device, Step(1, 1, 64))
need = total(predict_step(tiny.config, small.step.work, roof)).seconds
print(f"`tiny`: a step takes {digits(1e3 * small.median_s)} ms; reading and arithmetic need {digits(1e3 * need)} ms")
tiny_ops.close()

# %% [markdown]
# The last line is worth a second look on a quiet machine: the time that `tiny` takes is hardly reading and hardly
# arithmetic. "Decode is memory-bound", one reads everywhere; whether it is depends on the size of the model. On a GPU
# the third regime is the launching of kernels (notebook 09), and it is larger than you would think.
#
# ### Fewer bytes
#
# If decode is reading, then the remedy is not a faster processor but a smaller model: the same weights in fewer bits.
# How fast should each be? These are llama.cpp's widths, with recorded runs of llama.cpp on a quiet machine of 2 cores
# (Emerald Rapids) whose reading ceiling was 28.2 GB/s.

# %%
from minifer.roofline.predict import BYTES

RECORDED = {"float32": 39.0, "bfloat16": 61.0, "q8_0": 83.5, "q4_1": 104.5}  # tokens per second, llama.cpp
THERE = 28.2e9
smollm2_parameters = 134_515_008
most = {width: THERE / (smollm2_parameters * BYTES[width]) for width in RECORDED}
for width, speed in RECORDED.items():
    print(f"{width:<9} {digits(BYTES[width]):>5} bytes a weight: at most {digits(most[width]):>5} tok/s,", end=" ")
    print(f"recorded {digits(speed):>5}, {digits(100 * speed / most[width])} % of it")

# %%
figure, ax = plt.subplots()
at = np.arange(len(RECORDED))
ax.bar(at - 0.2, list(most.values()), 0.4, color="white", edgecolor=notebook.BLACK, hatch="//", label="ceiling")
ax.bar(at + 0.2, list(RECORDED.values()), 0.4, color=notebook.ORANGE, edgecolor=notebook.BLACK, label="recorded")
ax.set_xticks(at, list(RECORDED))
ax.set(ylabel="tokens per second, batch 1")
ax.legend()
show(
    figure,
    "Figure 4. Narrower weights raise the ceiling; what is reached of it falls, since unpacking is arithmetic.",
    "Pairs of bars for float32, bfloat16, q8_0 and q4_1: the ceiling from bytes alone rises to "
    f"{digits(most['q4_1'])} tokens per second, recorded runs from 39 to 104.5.",
)

# %% [markdown]
# The ceiling rises as the bytes fall, but the recorded share of it falls from left to right. Why?
# Numbers in four bits must be unpacked before they can be multiplied, and that is arithmetic: the dot wanders from
# under the slanted roof towards the flat one.

# %%
ops.close()
del weights, loaded  # half a gigabyte each, and measuring needs as much again
after = measure_ceilings(512 << 20)
notebook.drift(ceilings.read_bytes_per_s / 1e9, after.read_bytes_per_s / 1e9)

# %% [markdown]
# ## Explain
#
# In one line: *an operation takes at least the longer of its reading and its arithmetic; a step is a sum of operations;
# what is left is overhead.*
#
# $$t \;\ge\; \sum_{\mathrm{op}} \max\left(\frac{\mathrm{FLOPs}}{\mathrm{peak}}, \frac{\mathrm{bytes}}{\mathrm{bandwidth}}\right)$$
#
# Three consequences, each of which has built a company:
#
# * **Batching** moves the linears to the right, for free, until the ridge.
# * **Quantisation** makes the bytes fewer, and pays only where reading is the limit.
# * **GQA and paging** make the KV cache smaller, the one part that batching cannot help.
#
# And a warning. A dot *above* the roof is not a miracle. Its data came from a cache, or the ceiling was measured on a
# busy machine. Measure the ceilings before and after, as above.

# %% [markdown]
# ## Build
#
# **Task 6.1, `attention_cost`** (40 minutes). One layer, one sequence: `work.length` new tokens, after which
# `work.context` exist. Query i sees `min(position + 1, window)` keys; count a pair of query and key as 4 · H · D FLOPs.
# Bytes: queries read, output written, keys and values read once.
#
# <details><summary>Hint 1</summary>Start without a window: the sum of <code>first + 1</code> up to
# <code>context</code>, where <code>first = context - length</code>. Multiply by 4 * H * D.</details>
# <details><summary>Hint 2</summary>With a window some queries see <code>window</code> keys and not one more. A loop over
# the new tokens is fine.</details>
# <details><summary>Hint 3</summary>At most <code>window + length - 1</code> keys are read, by <em>kv</em> heads: 2 *
# keys * K * D. Queries and output: 2 * length * H * D. All times <code>a</code> bytes; one call.</details>


# %%
def my_attention_cost(config, work, a):
    """`Cost(1, flops, bytes)` of one layer's attention for one sequence, `a` bytes per number."""
    raise NotImplementedError("task 6.1")


check("6.1", my_attention_cost)

# %% [markdown]
# **Task 6.2, `predict_ops`** (15 minutes). For each operation of `step_cost`, an `OpTime(cost, compute_s, bandwidth_s,
# roofline_s)`.
#
# <details><summary>Hint 1</summary><code>step_cost(config, work, **sizes)</code> is a dictionary by name.</details>
# <details><summary>Hint 2</summary>The roofline time is the longer of the two. Not their sum: a processor reads the next
# numbers while it multiplies these.</details>

# %%
from minifer.roofline.predict import OpTime  # noqa: F401


def my_predict_ops(config, work, roof, **sizes):
    """Every operation of a step, without overhead: name -> OpTime."""
    raise NotImplementedError("task 6.2")


check("6.2", my_predict_ops)

# %% [markdown]
# **Task 6.3, `kv_traffic`** (15 minutes). Bytes of KV cache that a decode step reads for one sequence.
#
# <details><summary>Hint 1</summary>2 (key and value) x layers x tokens x kv heads x head size x bytes.</details>
# <details><summary>Hint 2</summary>With a sliding window no more than <code>config.window()</code> tokens are read; and
# the bytes per number are <code>sizes.get("activation_bytes", 4)</code>.</details>


# %%
def my_kv_traffic(config, context, **sizes):
    """Bytes of KV cache read in a decode step at this context."""
    raise NotImplementedError("task 6.3")


check("6.3", my_kv_traffic)

# %% [markdown]
# ## Break
#
# This version of `kv_traffic` has predicted for months that the KV cache is a problem three times as large as it
# turned out to be. It was right for the first model it was tried on, years ago.

# %%
import inspect

from minifer.apps.notebook_bugs import planted
from minifer.ops import reference

broken_kv_traffic = planted("6.3", "db90")
held = reference.Ops(c, device).new_store(1, 100).nbytes
print(f"the arrays hold {held:,} bytes for 100 tokens, this function says {broken_kv_traffic(c, 100):,.0f}")

# %% [markdown]
# Which number of the model is wrong by just this factor? Guess, then read the code.

# %%
print(inspect.getsource(broken_kv_traffic))

# %% [markdown]
# <details><summary>The bug</summary>
#
# It counts query heads, <code>num_attention_heads</code>. The cache is stored by <code>num_key_value_heads</code>, and
# with grouped-query attention there are fewer of those. In the models of 2022 both numbers were the same, so nobody
# could see it: a test on such a model is no test. That is why the tests here use 9 heads over 3.
# It is one of the bugs with which the tests of the labs are tested:
# <code>tests/bugs/phase06/kv_traffic_by_query_heads.py</code>.
#
# </details>

# %%
check("6.3", broken_kv_traffic)

# %% [markdown]
# ## Compare
#
# | | file | look for |
# |---|---|---|
# | **speed by itself** in vLLM | `vllm/benchmarks/latency.py` | one batch, no queue |
# | llama.cpp | `tools/llama-bench/llama-bench.cpp` | `pp512`, `tg128`: the names of the rows |
# | Ollama | `api/types.go` | `EvalDuration`, in each answer |
# | **narrow weights** in vLLM | `vllm/model_executor/layers/quantization/` | one file per format |
# | llama.cpp | `ggml/src/ggml-cpu/quants.c` | `ggml_vec_dot_q4_1_q8_1`: unpacking within the product |
# | Ollama | llama.cpp's, through `ml/backend/ggml/` | |
#
# `minifer roofline` makes all of this notebook's figures in one go, and `minifer bench compare` measures other engines
# beside it where they are installed.

# %% [markdown]
# ## Five questions
#
# <details><summary>1. A processor with twice the FLOP/s and the same memory: what gets faster?</summary>Prefill, and
# decode in batches beyond the ridge. Decode of one request stays as it was.</details>
#
# <details><summary>2. Where does the half FLOP per byte come from?</summary>Two operations for each weight, four bytes
# for each weight. With 16-bit weights it is one.</details>
#
# <details><summary>3. Why does attention in decode not profit from batching?</summary>Each sequence reads keys and
# values of its own; two sequences read twice as much for twice the arithmetic.</details>
#
# <details><summary>4. A step takes three times the predicted time. Name three suspects.</summary>Overhead of calls; a
# kernel that does not reach the ceiling for these shapes; a machine that was not quiet when the ceiling or the step was
# measured.</details>
#
# <details><summary>5. Weights in 4 bits, decode three times as fast. Is prefill, too?</summary>No: it waits for
# arithmetic, and unpacking adds some. On the machine of figure 4 llama.cpp's prefill of 512 tokens was recorded at 629
# tokens per second with float32 and 243 with Q4_1.</details>

# %% [markdown]
# ## Three numbers to write down

# %%
print(f"1. the ridge of this machine:             {digits(ceilings.ridge)} FLOPs per byte")
print(f"2. the most tokens per second, alone:     {digits(1 / best.seconds)}")
print(f"3. of that, minifer reached:              {digits(100 * best.seconds / decode[0].median_s)} %")
