# %% [markdown]
# # 01. One token at a time
#
# **How does a function that only ever answers "what comes next?" write a whole story?**
#
# You will watch it write, predict what that costs, measure it on your own machine, and then write the loop yourself.
# At the end you will know from experience, not from hearsay, why every inference engine has a KV cache: you will have
# lived without one.
#
# About 45 minutes, of which the machine computes about one. Two cores, 1.5 GB of memory, no GPU.

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
import time

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
            ("tokens", "everything so far"),
            ("model()", "the forward pass"),
            ("logits", "a score for each token"),
            ("choose()", "takes one of them"),
        ],
        back="append the token, and begin again",
    ),
    "Figure 1. Generation is a loop around one function: the whole text goes in, one token comes out.",
    "Four boxes in a row: tokens, model, logits, choose. An arrow leads from the last box back to the first, "
    "labelled: append the token, and begin again.",
)

# %% [markdown]
# ## See
#
# First the finished thing: a real model, SmolLM2 with 135 million weights, continues a text. (If you have no network
# and no model in your cache, a tiny model that comes with minifer takes its place, and the next cell says so.)
#
# `room="reference"` asks for the textbook arithmetic of `minifer/ops/reference.py`, not for the tuned one.

# %%
from minifer import LLM, SamplingParams

models = notebook.choose_models()
options = {"room": "reference", "max_model_len": 512, "max_num_seqs": 1}
llm = LLM(models.text, **options)
timed = llm if models.speed == models.text else LLM(models.speed, **options)  # the same one, unless you are offline
print(models.note or f"{models.text}: {llm.vocab_size:,} tokens in its vocabulary")

# %%
PROMPT = "Once upon a time"
print(PROMPT, end="")
for chunk in llm.stream(PROMPT, SamplingParams(temperature=0, max_tokens=40)):
    print(f"|{chunk.text}", end="", flush=True)

# %% [markdown]
# Each bar is the border between two tokens: pieces of text, some whole words, some parts of them. They came one after
# the other, and the model had to be asked for each.
#
# What was asked is always the same question. Here is the model as what it is, a **function without a memory**: the
# tokens of a whole text go in, and one number for each token of the vocabulary comes out, its *logit*.

# %%
from minifer.model.transformer import forward
from minifer.ops.batch import make_batch


def as_function(llm):
    """The model of `llm` as a function: token ids of a text [n] -> logits of the token that comes next [V]."""

    def model(ids):
        store = llm.ops.new_store(1, len(ids))  # scratch paper for one call, thrown away when it ends
        batch = make_batch([(ids, 0, (0,))], len(ids))
        return forward(llm.weights, batch, store, llm.ops)[0]

    return model


prompt = list(llm.encode(PROMPT))
logits = as_function(llm)(prompt)
print(f"{len(prompt)} tokens in: {prompt}")
print(f"{len(logits):,} numbers out: {logits[:4].round(2)} ...")

# %% [markdown]
# A softmax turns these scores into probabilities. The five best candidates:

# %%
from minifer.ops.reference import softmax

probabilities = softmax(logits)
for token in np.argsort(-logits)[:5]:
    text = llm.tokenizer.decode([int(token)])
    print(f"{text!r:>12}  logit {digits(logits[token]):>5}  probability {digits(100 * probabilities[token]):>6} %")

# %% [markdown]
# Always taking the first of this list is called **greedy** decoding. Then the whole of text generation is this, the
# body of `generate` in `minifer/generate.py`:
#
# ```python
# ids = list(prompt_ids)
# for _ in range(max_tokens):
#     logits = model(ids)  # everything so far, computed again
#     token = choose(logits)
#     yield token
#     if token in eos_ids:
#         return
#     ids.append(token)
# ```
#
# Look at the comment. The text grows by one token per step, and each step hands the model *all of it*.

# %% [markdown]
# ## Predict
#
# Put a number in place of each `None` before you run on. A wrong guess teaches more than none.
#
# 1. The model reads 512 tokens in one call. How many times as long does that take as a call with a single token?
# 2. To write 40 tokens after a prompt of 4, the loop puts rows of 4, 5, 6, ... 43 tokens through the model. Of all the
#    tokens that go through it, how many percent have gone through it before?

# %%
guesses = notebook.Guesses()
guesses.predict("512 tokens against 1, times as long", None)
guesses.predict("tokens computed before, percent", None)

# %% [markdown]
# ## Run
#
# The loop itself, with a watch on every step.

# %%
from minifer.generate import generate

model = as_function(timed)
model(prompt)  # once for nothing: the first call also brings the weights into memory

tokens, step_ms = [], []
before = time.perf_counter()
for token in generate(model, prompt, max_tokens=40):
    now = time.perf_counter()
    tokens.append(token)
    step_ms.append(1e3 * (now - before))
    before = now
print(f"{len(tokens)} tokens in {digits(sum(step_ms) / 1e3)} s")
print(f"first five steps {digits(np.median(step_ms[:5]))} ms, last five {digits(np.median(step_ms[-5:]))} ms (medians)")

# %%
figure, ax = plt.subplots()
text_lengths = len(prompt) + np.arange(len(step_ms))
ax.plot(text_lengths, step_ms, marker="o", markersize=4, linewidth=1)
ax.set(xlabel="tokens in the text when the step began", ylabel="milliseconds for the step", ylim=(0, None))
show(
    figure,
    f"Figure 2. Each step of the loop has more to read than the one before ({models.speed}, reference room).",
    f"Line chart of the time per step, from {digits(step_ms[0])} milliseconds with {text_lengths[0]} tokens of text "
    f"to {digits(step_ms[-1])} milliseconds with {text_lengths[-1]} tokens.",
)

# %% [markdown]
# Forty steps are short, and other programs on your machine leave their marks on them. So ask the function directly,
# with texts up to 512 tokens, and take the best of three calls: disturbances only ever add time.


# %%
def best_ms(call, repeats=3):
    """The shortest of a few runs, in milliseconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)


lengths = [1, 2, 32, 64, 128, 256, 384, 512]
text = rng.integers(0, timed.vocab_size, max(lengths)).tolist()
call_ms = [best_ms(lambda n=n: model(text[:n])) for n in lengths]
for n, ms in zip(lengths, call_ms, strict=True):
    print(f"{n:>4} tokens {digits(ms):>7} ms")
notebook.drift(call_ms[0], best_ms(lambda: model(text[:1])))

# %%
floor_ms = call_ms[0]
slope_ms, start_ms = np.polyfit(lengths[1:5], call_ms[1:5], 1)  # a straight line through 2 to 128 tokens
figure, ax = plt.subplots()
ax.plot(lengths, call_ms, "o", color=notebook.BLUE, label="measured")
ends = np.array([0, lengths[-1]])
label = f"{digits(start_ms)} ms + {digits(slope_ms)} ms per token (from 2 to 128 tokens)"
ax.plot(ends, start_ms + slope_ms * ends, "--", color=notebook.VERMILLION, label=label)
ax.axhline(floor_ms, color=notebook.GREY, linestyle=":", label=f"a call with one token: {digits(floor_ms)} ms")
ax.set(xlabel="tokens in the text", ylabel="milliseconds for one call", ylim=(0, None))
ax.legend()
show(
    figure,
    f"Figure 3. One call takes a fixed time plus a part that grows with the text ({models.speed}, reference room).",
    f"Scatter plot of eight measured calls from {digits(call_ms[0])} milliseconds for 1 token to {digits(call_ms[-1])} "
    f"for 512, beside a straight line that rises by {digits(slope_ms)} milliseconds per token.",
)

# %%
rows = np.arange(len(prompt), len(prompt) + 40)  # tokens through the model in each step
repeated = rows.sum() - rows[-1]  # all but the first time of each
guesses.reveal("512 tokens against 1, times as long", call_ms[-1] / call_ms[0])
guesses.reveal("tokens computed before, percent", 100 * repeated / rows.sum())

# %%
figure, ax = plt.subplots()
steps = np.arange(1, len(rows) + 1)
known = np.concatenate([[0], rows[:-1]])  # what the step before had computed already
ax.bar(steps, known, color="#DDDDDD", edgecolor=notebook.GREY, hatch="//", label="computed before")
ax.bar(steps, rows - known, bottom=known, color=notebook.ORANGE, edgecolor=notebook.BLACK, label="new")
ax.set(xlabel="step", ylabel="tokens through the model")
ax.legend(loc="upper left")
show(
    figure,
    f"Figure 4. Of {rows.sum()} tokens that go through the model, {repeated} have been there before.",
    f"Bar chart of 40 steps with {rows[0]} to {rows[-1]} tokens. After the first step only the topmost token of each "
    "bar is new; everything under it was computed in the step before.",
)

# %% [markdown]
# ## Explain
#
# Two different things cost time, and they will stay with us for the whole course.
#
# **The floor.** A call has to read every weight of the model from memory, whether one token wants to know or five
# hundred. The weights are numbers of four bytes each, so the floor says how fast your machine reads.
#
# **The slope.** Each token is multiplied with every weight: a multiplication and an addition, so two floating-point
# operations (FLOPs) per weight. (All weights but those of the last matrix: logits are only wanted for the last token.)
# The slope says how fast your machine multiplies.
#
# So 512 tokens are *not* 512 times the work of one: they share the reading.

# %%
from minifer.model.cost import Cost, Work, num_parameters, step_cost

weight_bytes = 4 * num_parameters(timed.config)
flops = {n: sum(step_cost(timed.config, [Work(n, n)]).values(), Cost()).flops for n in (2, 128, 512)}
flops_each = (flops[128] - flops[2]) / 126
attention = step_cost(timed.config, [Work(512, 512)])["attention"].flops / flops[512]
above = call_ms[-1] / (start_ms + slope_ms * 512) - 1

print(f"floor: {digits(weight_bytes / 1e6)} MB of weights in {digits(floor_ms)} ms,", end=" ")
print(f"{digits(weight_bytes / floor_ms / 1e6)} GB/s")
print(f"slope: {digits(flops_each / 1e6)} million FLOPs in {digits(slope_ms)} ms,", end=" ")
print(f"{digits(flops_each / slope_ms / 1e6)} GFLOP/s")
print(f"at 512 tokens: attention is {digits(100 * attention)} % of the FLOPs, the time is", end=" ")
print(f"{digits(100 * above)} % above the line")

# %% [markdown]
# Two things in figure 3 don't fit the simple story, and both are worth a look.
#
# * **The jump from one token to two.** One row of numbers times a matrix is another routine of the BLAS library than
#   many rows times a matrix. The second copies the weights into a better order first. That pays for many rows, not two.
# * **The bend at the end.** In attention every token looks at every earlier one, so that part grows with the square of
#   the length. Counted in FLOPs it is small, as the last line above says. But the textbook writes a table of 512 x 512
#   scores for each head and goes over it again and again (scale, mask, softmax), and memory has to carry each pass.
#   FLOPs alone don't tell the time. Notebook 06 is about that.
#
# With `tiny`, floor and slope mean something else: it has so few weights that the time is **overhead**, the work of
# Python and of many small calls.
#
# **What it adds up to.** If a step with $n$ tokens of text takes start + slope · $n$, then $N$ steps take
# $N$ · start + ½ · slope · $N^2$: the time for a text grows with the *square* of its length.

# %%
N = 1000
total_s = (N * start_ms + slope_ms * N * N / 2) / 1e3
print(f"{N:,} tokens this way take at least {digits(total_s / 60)} min;", end=" ")
print(f"if each step cost only the floor, {digits(N * floor_ms / 6e4)} min")

answer = timed.generate([prompt], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))[0]
print(f"a step of the loop: {digits(np.median(step_ms))} ms (median), ", end="")
print(f"a step of minifer's engine: {digits(1e3 * np.median(answer.metrics.itl))} ms")
print(f"the engine wrote the same 40 tokens: {list(answer.token_ids) == tokens}")

# %% [markdown]
# The engine runs the same arithmetic in the same room and writes the same tokens, in less time. It keeps what it has
# computed for every token and puts only the new one through the model: the orange parts of figure 4 and none of the
# grey ones, so that each of its steps costs little more than the floor. What it keeps is the **KV cache**. You will
# build it in notebook 05; here you have seen what it is for.

# %% [markdown]
# ## Build
#
# **Task 1.1, `greedy`** (5 minutes). The most likely token of `logits [V]`; where several are equal, the smallest id.
#
# Write it in the next cell and run the cell. `check` runs the tests of `tests/phase01_generate` on *your* function.
#
# <details><summary>Hint 1</summary>You don't need the softmax: it never changes the order.</details>
# <details><summary>Hint 2</summary>NumPy has a function for the position of the largest element. Which one does it
# return among equals? And is what it returns an <code>int</code>?</details>


# %%
def my_greedy(logits: np.ndarray) -> int:
    """The most likely token of `logits [V]`; the smallest id among equals.

    my_greedy(np.array([0.5, 2.0, 2.0])) is 1
    """
    raise NotImplementedError("task 1.1")


check("1.1", my_greedy)

# %% [markdown]
# **Task 1.2, `generate`** (15 minutes). The loop. `model` takes a list of token ids and returns logits, `choose` takes
# logits and returns a token. The tests use a model that is a table of ten lines, so that every answer is known.
#
# <details><summary>Hint 1</summary>Use <code>yield</code>: a token must be handed out before the next one is computed,
# or nothing could be streamed.</details>
# <details><summary>Hint 2</summary>The caller's list of prompt tokens is not yours to change. Make a copy
# first.</details>
# <details><summary>Hint 3</summary>Is the end-of-sequence token handed out too? Read the docstring. And does the loop
# look at the prompt for it, or only at what it has just chosen?</details>
# <details><summary>Hint 4</summary>For bad input: <code>raise RequestError("the prompt is empty ...")</code>, and one
# that names the value of a negative <code>max_tokens</code>.</details>

# %%
from minifer.errors import RequestError  # noqa: F401
from minifer.generate import greedy


def my_generate(model, prompt_ids, *, max_tokens, eos_ids=(), choose=greedy):
    """Yield the tokens that follow `prompt_ids`, one at a time.

    Ends after `max_tokens` tokens, or after an end-of-sequence token, which is yielded too. Raises RequestError for an
    empty prompt and for a negative `max_tokens`.
    """
    raise NotImplementedError("task 1.2")


check("1.2", my_generate)

# %% [markdown]
# Passed? Then your loop can write with the real model. (The reference is `minifer/generate.py`, 20 lines: compare.)

# %%
try:
    written = list(my_generate(as_function(llm), prompt, max_tokens=12, choose=greedy))
    print(PROMPT + llm.tokenizer.decode(written))
except NotImplementedError as error:
    print(f"not yet: {error}")

# %% [markdown]
# ## Break
#
# Here is a loop that has passed a code review. It continues stories well. Then somebody put it behind a chat.

# %%
import inspect

from minifer.apps.notebook_bugs import planted

broken_generate = planted("1.2", "fa66")
chat = list(llm.encode_chat([{"role": "user", "content": "What is the capital of France?"}]))
for name, ids in (("story", prompt), ("chat", chat)):
    written = list(broken_generate(as_function(llm), ids, max_tokens=8, eos_ids=llm.config.eos_token_ids))
    print(f"{name}: {llm.tokenizer.decode(written, skip_special=True)!r}")

# %% [markdown]
# The answer in the chat is cut off after its first word, whatever you ask. Stories are fine. Where is the bug? This is
# what the model was given; look at it before you unfold the answer.

# %%
print(llm.tokenizer.decode(chat))
print("end-of-sequence tokens:", [llm.tokenizer.decode([i]) for i in llm.config.eos_token_ids])

# %% [markdown]
# And this is the loop.

# %%
print(inspect.getsource(broken_generate))

# %% [markdown]
# <details><summary>The bug</summary>
#
# The last test asks whether an end-of-sequence token stands <em>anywhere</em> in the text, the prompt included. A chat
# template ends each turn of the conversation with that very token, so the loop stops after one step. The question must
# be about the new token only: <code>if token in eos_ids</code>. Stories never showed it, since their prompts end
# nothing. It is one of the bugs with which the tests of the labs are tested:
# <code>tests/bugs/phase01/generate_stops_at_an_old_end.py</code>.
#
# </details>
#
# Which test of the phase would have caught it in review?

# %%
check("1.2", broken_generate)

# %%
written = list(generate(as_function(llm), chat, max_tokens=8, eos_ids=llm.config.eos_token_ids))
print(f"the reference, in the chat: {llm.tokenizer.decode(written, skip_special=True)!r}")

# %% [markdown]
# ## Compare
#
# The same four lines in engines that serve millions (names as in their main branches of 2026; files move now and then):
#
# | | file | look for |
# |---|---|---|
# | **the loop** in vLLM | `vllm/v1/engine/core.py` | `EngineCore.step` |
# | llama.cpp | `examples/simple/simple.cpp` | `// main loop` |
# | Ollama | `runner/ollamarunner/runner.go` | `forwardBatch`, then `computeBatch` |
# | **tokens to logits** in vLLM | `vllm/v1/worker/gpu_model_runner.py` | `execute_model` |
# | llama.cpp | `src/llama-context.cpp` | `llama_decode` |
# | Ollama | `model/model.go` | `Forward` |
# | **greedy** in vLLM | `vllm/v1/sample/sampler.py` | `greedy_sample` |
# | llama.cpp | `src/llama-sampler.cpp` | `llama_sampler_greedy_apply` |
# | Ollama | `sample/samplers.go` | `greedy` |
# | **is it over?** in vLLM | `vllm/v1/core/sched/utils.py` | `check_stop` |
# | llama.cpp | `examples/simple/simple.cpp` | `llama_vocab_is_eog` |
# | Ollama | `runner/ollamarunner/runner.go` | `SpecialEOS` |

# %% [markdown]
# Start with `simple.cpp`: its loop is yours, with one difference. Where yours appends the token to the text, it writes
# `batch = llama_batch_get_one(&new_token_id, 1)`: the next call gets *one* token, because llama.cpp remembers the rest.
# vLLM's `check_stop` looks at `request.output_token_ids[-1]`, the last token and nothing else: no bug from above there.

# %% [markdown]
# ## Five questions
#
# <details><summary>1. A loop without a cache writes 40 tokens. How often did the first token of the prompt go through
# the model?</summary>Forty times: once in every step.</details>
#
# <details><summary>2. An answer becomes twice as long. How much longer does the loop take, once the slope
# dominates?</summary>About four times: twice as many steps, each on average twice as long.</details>
#
# <details><summary>3. Why isn't a call with 512 tokens 512 times as slow as a call with one?</summary>Both read all
# the weights once, which is the floor. The 512 tokens share that reading and only pay for their own
# arithmetic.</details>
#
# <details><summary>4. Greedy decoding twice on the same prompt: the same text? Where would you change the loop to get
# another?</summary>The same, since nothing in the loop is random. Only <code>choose</code> would have to change: draw
# from the probabilities instead of taking the largest (notebook 04).</details>
#
# <details><summary>5. Somebody waits for an answer of 200 tokens. What can they see after a tenth of the time, and what
# in the code makes that possible?</summary>The first tokens: <code>yield</code> hands each out before the next is
# computed. Without a cache it is even more than a tenth of them, since the early steps are the cheap ones.</details>

# %% [markdown]
# ## Three numbers to write down
#
# Keep them: notebook 05 puts the cache in and asks for them again.

# %%
print(f"1. the floor, a call with one token:     {digits(floor_ms)} ms")
print(f"2. each further token of text adds:      {digits(slope_ms)} ms")
print(f"3. work done before, for 40 tokens:      {digits(100 * repeated / rows.sum())} %")
