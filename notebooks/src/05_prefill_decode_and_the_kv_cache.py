# %% [markdown]
# # 05. Prefill, decode and the KV cache
#
# **The loop of notebook 01 computed everything again for every word. What exactly must be kept so that it need not?**
#
# Less than you might fear, and more than you might like: less, because of every token only two short vectors per layer
# are ever looked at again; more, because there are many layers. You will see the cache work, measure what it saves and
# what it costs, cut a long prompt into chunks, and then write the cache yourself.
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
            ("new tokens", "a prompt, or one"),
            ("write()", "their K and V"),
            ("KV cache", "of all tokens"),
            ("attend()", "new ones look back"),
            ("logits", "for the last one"),
        ],
        back="one new token, and again",
    ),
    "Figure 1. With a cache only new tokens go in; the old ones are looked up.",
    "Five boxes in a row: new tokens, write, KV cache, attend, logits. An arrow leads from the last box back to the "
    "first, labelled: one new token, and again.",
)

# %% [markdown]
# ## See
#
# The same model and the same arithmetic as in notebook 01, in the textbook's room. `Incremental` is a sequence with a
# cache. Its `prefill` takes a prompt, its `decode_step` one token.

# %%
from minifer.device import select_device
from minifer.incremental import Incremental
from minifer.model.load import load_model
from minifer.ops import open_room
from minifer.tokenizer import Tokenizer

models = notebook.choose_models()
loaded = load_model(models.speed)
c = loaded.config
ops = open_room("reference", c, select_device("cpu"))
weights = ops.prepare(loaded.weights)
writer = loaded if loaded.tokenizer_path else load_model(models.text)  # random weights have no vocabulary
tokenizer = Tokenizer.from_pretrained(writer.tokenizer_path)
print(models.note or f"{models.text}, {c.num_hidden_layers} layers, reference room")


# %%
def new_sequence(capacity=320):
    """An empty sequence with room for `capacity` tokens."""
    return Incremental(weights, ops.new_store(1, capacity), ops)


prompt = [token % c.vocab_size for token in tokenizer.encode("The three primary colours are red,")]
sequence = new_sequence()
logits = sequence.prefill(prompt)
for _ in range(10):
    token = int(logits[0].argmax())
    print(tokenizer.decode([token % tokenizer.vocab_size]), end="|", flush=True)
    logits = sequence.decode_step(token)

# %% [markdown]
# Is it the same as computing everything again? That is not a matter of taste but a theorem, and it can be tested: the
# logits after the last token, once with a cache that was filled step by step, once from the whole text in one go.

# %%
whole = rng.integers(0, c.vocab_size, 24).tolist()
step_by_step = new_sequence()
for token in whole:
    cached = step_by_step.decode_step(token)[0].copy()
at_once = new_sequence().prefill(whole)[0]
print(f"largest logit {digits(abs(at_once).max())}, largest difference {abs(cached - at_once).max():.1e}")

# %% [markdown]
# Why may the old keys and values be kept at all? Because of the **causal mask**: a token looks only at what stands
# before it. What comes later cannot change it, so its keys and values are final the moment they are computed.
#
# ## Predict
#
# Put a number in place of each `None` before you run on.
#
# 1. After a text of 256 tokens, one more token is wanted. Computing everything again takes how many times as long as
#    a step with the cache?
# 2. How many kilobytes does one token occupy in the cache, for SmolLM2 in float32?
# 3. A prompt of 128 tokens is cut into chunks of 16. By how many percent does the prefill take longer?

# %%
guesses = notebook.Guesses()
guesses.predict("without a cache against with one, at 256 tokens, times", None)
guesses.predict("KB of cache per token", None)
guesses.predict("chunks of 16 take longer, percent", None)

# %% [markdown]
# ## Run
#
# ### With and without


# %%
def seconds(call):
    """How long one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def both_ms(length):
    """One more token after `length`: everything again, and with the cache, the better of three."""
    text = rng.integers(0, c.vocab_size, length).tolist()
    kept = new_sequence()
    again = seconds(lambda: kept.prefill(text))
    return 1e3 * again, 1e3 * min(seconds(lambda: kept.decode_step(1)) for _ in range(3))


lengths = [16, 64, 128, 256]
both_ms(16)  # once for nothing
times = np.array([both_ms(length) for length in lengths])
for length, (again, kept) in zip(lengths, times, strict=True):
    print(f"{length:>4} tokens of text: again {digits(again):>5} ms, with the cache {digits(kept):>5} ms")

# %%
figure, ax = plt.subplots()
ax.plot(lengths, times[:, 0], marker="o", label="everything again")
ax.plot(lengths, times[:, 1], marker="s", label="with the cache")
ax.set(xlabel="tokens of text so far", ylabel="ms for one more token", xlim=(0, None), ylim=(0, None))
ax.legend()
show(
    figure,
    f"Figure 2. Without a cache each token costs a whole prefill, with one almost always the same ({models.speed}).",
    f"Two lines over 16 to 256 tokens. Computing everything again rises from {digits(times[0, 0])} to "
    f"{digits(times[-1, 0])} milliseconds, the step with a cache goes from {digits(times[0, 1])} to "
    f"{digits(times[-1, 1])}.",
)
guesses.reveal("without a cache against with one, at 256 tokens, times", times[3, 0] / times[3, 1])

# %% [markdown]
# ### What it costs
#
# Time became memory. How much, follows from the shape of the model alone, and the arrays agree.

# %%
store = ops.new_store(1, 100)
print(f"keys of one layer   {store.k(0).shape}  (kv heads, head size, slots)")
print(f"values of one layer {store.v(0).shape}  (kv heads, slots, head size)")
formula = 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * 4
print(f"2 x {c.num_hidden_layers} layers x {c.num_key_value_heads} kv heads x {c.head_dim} x 4 = {formula:,} bytes")
print(f"the arrays: {store.nbytes / 100:,.0f} bytes per token")
guesses.reveal("KB of cache per token", formula / 1e3)

# %%
every_head = formula * c.num_attention_heads // c.num_key_value_heads
contexts = np.array([0, 4096, 8192, 16384])
figure, ax = plt.subplots()
for name, size in (
    ("a kv head for every query head", every_head),
    ("as it is", formula),
    ("as it is, 16 bits", formula / 2),
):
    ax.plot(contexts, contexts * size / 1e6, label=name)
weight_mb = 4 * loaded.weights.num_parameters / 1e6
ax.axhline(weight_mb, color=notebook.GREY, linestyle=":", label="the weights themselves, 32 bits")
ax.set(xlabel="tokens in the cache", ylabel="megabytes", xlim=(0, None), ylim=(0, None))
ax.legend()
show(
    figure,
    "Figure 3. The cache grows by the token, and outgrows the weights; shared kv heads and narrow numbers hold it down.",
    f"Lines of cache size up to 16,384 tokens: {digits(16384 * every_head / 1e6)} MB with a kv head for each query head, "
    f"{digits(16384 * formula / 1e6)} as the model is, half of that in 16 bits; the weights are {digits(weight_mb)} MB.",
)

# %% [markdown]
# Look at the two levers in this figure, because both are in every recent model. The query heads share few kv heads
# (that is **GQA**), and servers keep the cache in 16 or even 8 bits.
#
# ### A prompt in chunks
#
# While a long prompt goes through the model, nobody else gets a token. So servers cut it: a chunk, then a token for
# everybody, then the next chunk. The theorem says that the result is the same. The clock says what it costs.

# %%
text = rng.integers(0, c.vocab_size, 128).tolist()
chunks = [8, 16, 32, 64, 128]
total_ms, worst_ms = [], []
for chunk in chunks:
    growing, steps = new_sequence(), []
    for start in range(0, len(text), chunk):
        steps.append(1e3 * seconds(lambda start=start, g=growing, n=chunk: g.step(text[start : start + n])))
    total_ms.append(sum(steps))
    worst_ms.append(max(steps))
    print(f"chunks of {chunk:>3}: {digits(total_ms[-1]):>6} ms in all, the longest {digits(worst_ms[-1]):>6} ms")
guesses.reveal("chunks of 16 take longer, percent", 100 * (total_ms[1] / total_ms[-1] - 1))

# %%
figure, ax = plt.subplots()
ax.plot(chunks, total_ms, marker="o", label="TTFT: all chunks together")
ax.plot(chunks, worst_ms, marker="s", label="worst ITL of the others: the longest chunk")
ax.set(xlabel="tokens in a chunk", ylabel="milliseconds", xscale="log", ylim=(0, None))
ax.set_xticks(chunks, [str(chunk) for chunk in chunks])
ax.minorticks_off()
ax.legend()
show(
    figure,
    f"Figure 4. Small chunks are kind to the others and slow for the one who waits ({models.speed}).",
    f"Two lines over chunk sizes 8 to 128. The whole prefill falls from {digits(total_ms[0])} to "
    f"{digits(total_ms[-1])} milliseconds, the longest chunk rises from {digits(worst_ms[0])} to {digits(worst_ms[-1])}.",
)

# %% [markdown]
# ### TTFT and ITL of one request
#
# The two clocks of a person who waits: the **time to first token** is the prefill, the **inter-token latency** is one
# decode step. Metrics come from time stamps and from nothing else.

# %%
from minifer.metrics import from_stamps

watched, stamps = new_sequence(), []
sent = time.perf_counter()
logits = watched.prefill(text[:64])
for _ in range(12):
    stamps.append(time.perf_counter())
    logits = watched.decode_step(int(logits[0].argmax()))
m = from_stamps(sent, stamps, len(stamps))
print(f"TTFT {digits(1e3 * m.ttft)} ms; ITL {digits(1e3 * np.median(m.itl))} ms (median of {len(m.itl)} gaps)")
print(f"TPOT {digits(1e3 * m.tpot)} ms; E2E {digits(1e3 * m.e2e)} ms; 12 tokens have {len(m.itl)} gaps, not 12")
notebook.drift(times[0, 1], both_ms(16)[1])

# %% [markdown]
# ## Explain
#
# **The cached step is not free, and now you can say what it pays for.** It reads all weights, as any step does, and the
# keys and values of the whole text. It multiplies one row. Notebook 01 called this the floor; the cache has removed the
# slope.
#
# **The square is still there.** Each new token looks at all earlier ones. Only that part is left growing, and it is
# small until the cache is about as large as the weights: look where the lines of figure 3 cross.
#
# **A chunk pays the floor again.** A prompt in eight chunks reads the weights eight times. That is cheap while a chunk
# has enough arithmetic of its own to hide the reading, and dear when it has not: figure 4, left side.

# %%
crossing = weight_mb * 1e6 / formula
print(f"the cache is as large as the weights at {digits(crossing)} tokens")
print(f"a step there reads {digits(2 * weight_mb)} MB, twice what it read at the beginning")

# %% [markdown]
# ## Build
#
# Four tasks. `check` runs the tests of `tests/phase05_kv_cache` on *your* function.
#
# **Task 5.1, `KVStore.write`** (20 minutes). Tokens come as `[T, K, D]`, the arrays are keys `[K, D, slots]` and values
# `[K, slots, D]`, so that attention runs along adjacent memory. Put each token into its slot.
#
# <details><summary>Hint 1</summary>Only one layer is written: <code>self._k[layer]</code>.</details>
# <details><summary>Hint 2</summary><code>transpose(1, 2, 0)</code> for keys, <code>transpose(1, 0, 2)</code> for
# values.</details>
# <details><summary>Hint 3</summary><code>self._k[layer][:, :, slots] = ...</code>; slots is an array of places, so
# the tokens may land anywhere.</details>


# %%
def my_write(self, layer, slots, k_TKD, v_TKD):
    """Put the keys and values of T tokens, each `[T, K, D]`, into `slots [T]` of one layer."""
    raise NotImplementedError("task 5.1")


check("5.1", my_write)

# %% [markdown]
# **Task 5.2, `runs`** (25 minutes). A cache may lie in blocks. `runs([2, 3, 0], 9, 4)` is `[(8, 16), (0, 1)]`: blocks 2
# and 3 are neighbours and make one stretch, and of block 0 only one slot is in use.
#
# <details><summary>Hint 1</summary>Block b covers the slots from b * block_size to (b + 1) * block_size.</details>
# <details><summary>Hint 2</summary>If a block begins where the last stretch ends, make that stretch longer.</details>
# <details><summary>Hint 3</summary>Length 0 gives <code>[]</code>. For a length beyond the table, raise
# <code>UsageError</code>.</details>

# %%
from minifer.errors import RequestError, UsageError  # noqa: F401


def my_runs(block_table, length, block_size):
    """The stretches (first slot, slot after the last) that hold the first `length` tokens of a table."""
    raise NotImplementedError("task 5.2")


check("5.2", my_runs)

# %% [markdown]
# **Task 5.3, `Incremental.step`** (25 minutes): the heart of it. New tokens go in, their places are the ones after
# those that are there already. Use `make_batch` and `forward`.
#
# <details><summary>Hint 1</summary>Refuse no tokens, and more than <code>self.store.block_size</code> in all, with
# <code>RequestError</code>, before anything is written.</details>
# <details><summary>Hint 2</summary><code>make_batch([(tokens, self.length, (0,))], ...)</code>: the positions start at
# <code>self.length</code>.</details>
# <details><summary>Hint 3</summary>When may <code>self.length</code> grow: before <code>forward</code> or after
# it?</details>

# %%
from minifer.model.transformer import forward  # noqa: F401
from minifer.ops.batch import make_batch  # noqa: F401


def my_step(self, tokens, *, all_logits=False):
    """Append `tokens` and return the logits [1, V] after the last of them ([len(tokens), V] for all)."""
    raise NotImplementedError("task 5.3")


check("5.3", my_step)

# %% [markdown]
# **Task 5.4, `Incremental.prefill`** (20 minutes): a prompt, `chunk` tokens at a time.
#
# <details><summary>Hint 1</summary>A chunk is a step, and <code>self.step</code> is there.</details>
# <details><summary>Hint 2</summary>The last chunk may be shorter; <code>chunk=None</code> means one step for
# all.</details>


# %%
def my_prefill(self, prompt, chunk=None):
    """Append a prompt, `chunk` tokens at a time (None: all at once); logits [1, V] after its last token."""
    raise NotImplementedError("task 5.4")


check("5.4", my_prefill)

# %% [markdown]
# ## Break
#
# A colleague has written `step` anew. It came through the review, and short prompts come out right. One line is wrong.
# First the symptom.

# %%
import inspect

from minifer.apps.notebook_bugs import planted

broken_step = planted("5.3", "6008")


class Broken(Incremental):
    step = broken_step


def error(chunk, size=24):
    """How far the broken sequence's logits are off, prefilled in chunks."""
    broken = Broken(weights, ops.new_store(1, 64), ops)
    return float(abs(broken.prefill(whole[:size], chunk)[0] - at_once).max())


for chunk in (24, 12, 8, 1):
    print(f"24 tokens in chunks of {chunk:>2}: logits off by {digits(error(chunk))}")

# %% [markdown]
# In one piece it is right, token by token it is right, and in between it is wrong. What do the two good cases have in
# common? Write down a guess; then read the colleague's code.

# %%
print(inspect.getsource(broken_step))

# %% [markdown]
# <details><summary>The bug</summary>
#
# The step starts at <code>self.length if len(tokens) == 1 else 0</code>: someone took "more than one token" for "the
# prompt, from the beginning". A second chunk is then written over the first one, with the wrong positions. The two good
# cases never have a second step with several tokens. The cure is to have no cases at all: new tokens always start at
# <code>self.length</code>. It is one of the bugs with which the tests of the labs are tested:
# <code>tests/bugs/phase05/step_takes_many_for_the_first.py</code>.
#
# </details>

# %%
check("5.3", broken_step)

# %% [markdown]
# ## Compare
#
# | | file | look for |
# |---|---|---|
# | **the arrays** in vLLM | `vllm/v1/worker/gpu_model_runner.py` | `kv_caches` |
# | llama.cpp | `src/llama-kv-cache.cpp` | `cpy_k`, `cpy_v`: your `write` |
# | Ollama | `kvcache/causal.go` | `Put` |
# | **where a token goes** in vLLM | `vllm/v1/worker/block_table.py` | `slot_mapping` |
# | llama.cpp | `src/llama-kv-cache.cpp` | `find_slot` |
# | Ollama | `kvcache/causal.go` | `StartForward` |
# | **chunks** in vLLM | `vllm/v1/core/sched/scheduler.py` | `long_prefill_token_threshold` |
# | llama.cpp | `tools/server/server-context.cpp` | `n_batch` in `update_slots` |
# | Ollama | `runner/ollamarunner/runner.go` | `batchSize` |
#
# All three store K and V by kv heads; none of them keeps queries. Why not? Question 2.

# %% [markdown]
# ## Five questions
#
# <details><summary>1. Why may the keys and values of old tokens be kept, although new tokens arrive?</summary>Attention
# is causal: nothing that stands later enters into them, so they are final when they are computed.</details>
#
# <details><summary>2. Why is there a KV cache and no QKV cache?</summary>A query is used once, by its own token, in the
# step in which it is computed. Nobody asks for it again.</details>
#
# <details><summary>3. A model doubles its query heads and keeps its kv heads. What happens to the cache?</summary>
# Nothing: its size goes by kv heads. More query heads share each of them.</details>
#
# <details><summary>4. Somebody chats for an hour, others wait with short questions. Chunks of 16 or of 512?</summary>
# In between: small ones keep the others' worst gap short, large ones keep the prefill efficient. Figure 4 shows
# where, on your machine, smaller stops paying.</details>
#
# <details><summary>5. An answer has one token. What is its ITL?</summary>It has none: no gap, no latency between
# tokens. Not zero: undefined, and left out of every mean.</details>

# %% [markdown]
# ## Three numbers to write down

# %%
print(f"1. a step with the cache, 256 tokens of text:   {digits(times[3, 1])} ms")
print(f"2. cache per token:                             {formula:,} bytes")
print(f"3. the cache equals the weights at:             {digits(crossing)} tokens")
