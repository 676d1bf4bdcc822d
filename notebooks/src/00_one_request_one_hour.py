# %% [markdown]
# # 00. One request, one hour: from API to token and back
#
# **You press Enter, and a sentence comes back word by word. What happened in between, and what did you wait for?**
#
# This notebook follows one request through a whole inference engine. You write no code here: you run, guess and look.
# At the end you can tell where the time goes, what fills the memory, and which file decides who runs next. Everything
# after this hour, eleven notebooks of it, takes one station of the journey and lets you build it.
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
import io
import statistics

import matplotlib.pyplot as plt
import numpy as np

from minifer.apps import notebook
from minifer.apps.notebook import digits, show

rng = np.random.default_rng(0)
notebook.style()
notebook.summary()

# %%
show(
    notebook.flow(
        [
            ("text", "what you typed"),
            ("encode()", "text to tokens"),
            ("schedule()", "who runs now"),
            ("forward()", "tokens to logits"),
            ("sample()", "logits to a token"),
            ("text", "one piece more"),
        ],
        back="once per step, until the answer ends",
    ),
    "Figure 1. The stations of a request, and the loop that makes an answer come word by word.",
    "Six boxes in a row: text, encode, schedule, forward, sample, text. An arrow leads from the last box back, "
    "labelled: once per step, until the answer ends.",
)

# %% [markdown]
# ## See
#
# First the finished thing. The engine loads a real model, SmolLM2 with 135 million weights, and answers a question.
# A recorder watches each of its steps; we will read the recording at the end. (Without a network and without the model
# in your cache, a tiny model that comes with minifer writes in its place, and the next cell says so.)

# %%
from minifer import LLM, SamplingParams
from minifer.trace import TraceWriter

models = notebook.choose_models()
options = {"max_model_len": 640, "max_num_seqs": 8, "enable_prefix_caching": False}
recording = io.StringIO()
recorder = TraceWriter(recording, about={"model": models.speed})
timed = LLM(models.speed, trace=recorder, **options)
llm = timed if models.text == models.speed else LLM(models.text, **options)  # the same one, unless you are offline
print(models.note or f"{models.text}: {timed.config.num_hidden_layers} layers, {timed.vocab_size:,} tokens known")

# %%
QUESTION = "What is the capital of France?"
prompt = llm.encode_chat([{"role": "user", "content": QUESTION}])
for chunk in llm.stream(prompt, SamplingParams(temperature=0, max_tokens=24)):
    print(chunk.text, end="|", flush=True)

# %% [markdown]
# Did you see the small pause before the first word, and then the even ticking of the rest? Those two are what people
# mean when they call a model fast or slow, and they have names. **TTFT**, the time to first token, is the pause. **ITL**,
# the inter-token latency, is the tick. They have different causes, and by the end of this notebook you will have
# measured both causes.

# %% [markdown]
# ## Predict
#
# Four guesses, before anything is measured. Put a number in place of each `None`. A wrong guess teaches more than none.
#
# 1. A prompt becomes four times as long, 512 tokens instead of 128. TTFT becomes how many times as long?
# 2. To write *one* more token, how many megabytes does the processor have to read from memory?
# 3. Eight people ask at once. A step that makes a token for all eight takes how many times as long as a step for one?
# 4. A prompt of 512 tokens waits in the KV cache. How many megabytes does it occupy there?

# %%
guesses = notebook.Guesses()
guesses.predict("TTFT of 512 tokens against 128, times", None)
guesses.predict("MB read for one more token", None)
guesses.predict("step for eight against step for one, times", None)
guesses.predict("MB of KV cache for 512 tokens", None)

# %% [markdown]
# ## Run
#
# ### 1. Text becomes tokens
#
# A model reads numbers. The tokenizer cuts the text into pieces from a fixed list and gives each its place in that
# list. But look at what it cut: more than you typed.

# %%
pieces = [llm.tokenizer.decode([token]) for token in prompt]
print(f"{len(QUESTION)} characters typed, {len(prompt)} tokens sent:")
print("|".join(pieces))
print(list(prompt))

# %% [markdown]
# What surrounds your question is the **chat template**: control tokens that tell the model who speaks, and often a
# system message you never wrote. You wait for these tokens as for any others. (Notebook 02 builds the tokenizer.)
#
# ### 2. A router picks a machine
#
# A service has many copies of the model. Before any arithmetic, a router chooses one of them. Here is minifer's, a
# plain function of the prompt and of how busy each copy is. It remembers what it sent where, because a copy that has
# seen the beginning of a prompt has kept the work.

# %%
from minifer.apps.serve.router import Router

router = Router("prefix-affinity", 3)
system = rng.integers(0, 1000, 64).tolist()  # the same long beginning for everybody
other = rng.integers(0, 1000, 64).tolist()
for name, ids in (
    ("first", [*system, 1, 2]),
    ("second, same beginning", [*system, 7, 8, 9]),
    ("third, a new one", other),
):
    choice = router.choose(ids, load=[0, 0, 0])
    print(f"{name:<24} -> copy {choice.replica}, {choice.matched_tokens} tokens known there: {choice.reason}")

# %% [markdown]
# ### 3. A scheduler decides who runs
#
# Inside the chosen copy time passes in **steps**, and each step is one pass through the model. Before each, the
# scheduler looks at who is waiting and who is running, and writes a plan. It needs no model for that, so here it works
# without one: a stand-in makes up the tokens. Three requests, a batch of two seats.

# %%
from minifer.limits import EngineConfig
from minifer.scheduler.continuous import ContinuousScheduler
from minifer.scheduler.fake import FakeExecutor
from minifer.scheduler.request import Request

limits = EngineConfig(num_blocks=16, block_size=4, max_num_seqs=2, max_num_batched_tokens=8)
scheduler, stand_in = ContinuousScheduler(limits), FakeExecutor(16, 4)
for name, size, answer in (("anna", 5, 2), ("ben", 6, 4), ("cleo", 3, 3)):
    scheduler.add(Request(name, tuple(range(size)), SamplingParams(max_tokens=answer, ignore_eos=True)))
now = 0.0
while scheduler.requests:
    plan = scheduler.step(now)
    print(plan)
    scheduler.commit(plan, stand_in.run(plan, dict(scheduler.in_flight or {})), now + 0.5)
    now += 1

# %% [markdown]
# Read it as a story. *Prefill* is a prompt going in; *decode* is a token coming out. In one and the same step, one
# request may be decoding while another's prompt goes in: the batch is remade at every step, and a seat that becomes free
# is taken at once. That is **continuous batching**, and the file that does it is `minifer/scheduler/continuous.py`. When
# somebody waits although the machine seems idle, this is the file to open. (Notebook 07 builds it.)
#
# ### 4. Prefill: the prompt goes through the model
#
# Now the clock. Prompts of random tokens, one token of answer each, so that all the waiting is TTFT.


# %%
def ttft_ms(length):
    """The time to first token of a prompt of `length` random tokens, in milliseconds: the best of two."""
    found = []
    for _ in range(2):
        ids = rng.integers(0, timed.vocab_size, length).tolist()
        answer = timed.generate([ids], SamplingParams(temperature=0, max_tokens=1))[0]
        found.append(1e3 * answer.metrics.ttft)
    return min(found)


lengths = [8, 64, 128, 256, 512]
ttft_ms(8)  # once for nothing: the first call brings the weights into memory
ttfts = [ttft_ms(n) for n in lengths]
for n, ms in zip(lengths, ttfts, strict=True):
    print(f"{n:>4} tokens of prompt: TTFT {digits(ms):>6} ms")

# %%
figure, ax = plt.subplots()
ax.plot(lengths, ttfts, marker="o")
ax.set(xlabel="tokens in the prompt", ylabel="TTFT, milliseconds", xlim=(0, None), ylim=(0, None))
show(
    figure,
    f"Figure 2. The time to first token grows with the prompt ({models.speed}).",
    f"Line chart of the time to first token: {digits(ttfts[0])} milliseconds for 8 tokens of prompt, rising to "
    f"{digits(ttfts[-1])} milliseconds for 512.",
)
guesses.reveal("TTFT of 512 tokens against 128, times", ttfts[-1] / ttfts[2])

# %% [markdown]
# ### 5. The KV cache: what is kept
#
# While the prompt passes through, every layer computes two short vectors for each token, a **key** and a **value**.
# Later tokens look back at them. They never change, so the engine keeps them: that is the KV cache, and it is why the
# prompt need not be computed again for each word of the answer.

# %%
c = timed.config
print("2 (key and value)")
print(f"x {c.num_hidden_layers} layers x {c.num_key_value_heads} heads x {c.head_dim} numbers x 4 bytes")
print(f"= {c.kv_bytes_per_token:,} bytes for each token")
kv_mb = 512 * c.kv_bytes_per_token / 1e6
guesses.reveal("MB of KV cache for 512 tokens", kv_mb)
print(f"your question alone: {digits(len(prompt) * c.kv_bytes_per_token / 1e6)} MB, for {len(QUESTION)} letters")

# %% [markdown]
# ### 6. Decode: one token per step
#
# From here on each step puts a single token through the model. That is little arithmetic, but which numbers does it
# need? All weights, once. And the keys and values of everything before. They lie in memory, and have to come to the
# processor, in every step.

# %%
from minifer.model.cost import num_parameters

weight_mb = 4 * num_parameters(c) / 1e6
ids = rng.integers(0, timed.vocab_size, 128).tolist()
alone = timed.generate([ids], SamplingParams(temperature=0, max_tokens=24, ignore_eos=True))[0]
itl_ms = 1e3 * statistics.median(alone.metrics.itl)
step_mb = weight_mb + 140 * c.kv_bytes_per_token / 1e6  # in the middle of the answer 140 tokens are in the cache
print(f"weights {digits(weight_mb)} MB + KV cache {digits(step_mb - weight_mb)} MB, in {digits(itl_ms)} ms")
print(f"that is a reading speed of {digits(step_mb / itl_ms)} GB/s")
guesses.reveal("MB read for one more token", step_mb)

# %% [markdown]
# All of the model, for a few letters. And then again for the next few. Is that not a terrible waste? It is, as long as
# you are alone.
#
# ### 7. A batch: eight for little more than the price of one
#
# Eight requests in one batch can share one reading of the weights.


# %%
def batch_itl_ms(size):
    """The median gap between tokens while `size` requests decode together, in milliseconds."""
    prompts = [rng.integers(0, timed.vocab_size, 32).tolist() for _ in range(size)]
    answers = timed.generate(prompts, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True))
    return 1e3 * statistics.median(gap for answer in answers for gap in answer.metrics.itl)


sizes = [1, 2, 4, 8]
batch_ms = [batch_itl_ms(size) for size in sizes]
for size, ms in zip(sizes, batch_ms, strict=True):
    print(f"{size} at once: a step takes {digits(ms):>5} ms, {digits(1e3 * size / ms):>5} tokens per second in all")
guesses.reveal("step for eight against step for one, times", batch_ms[-1] / batch_ms[0])

# %%
figure, ax = plt.subplots()
ax.plot(sizes, batch_ms, marker="o", label="measured")
ax.plot(sizes, [batch_ms[0] * size for size in sizes], label="if nothing were shared")
ax.set(xlabel="requests in the batch", ylabel="milliseconds for a step", ylim=(0, None), xticks=sizes)
ax.legend()
show(
    figure,
    f"Figure 3. A step for eight costs far less than eight steps for one ({models.speed}).",
    f"Two lines over batch sizes 1 to 8: the measured step rises from {digits(batch_ms[0])} to {digits(batch_ms[-1])} "
    f"milliseconds, the line without sharing to {digits(8 * batch_ms[0])}.",
)
notebook.drift(batch_ms[0], batch_itl_ms(1))

# %% [markdown]
# ### 8. The whole journey on one line
#
# The recorder has watched all of it. Here is one request with everything it waited for, drawn from its time stamps.

# %%
from minifer.apps.view import trace_figures, trace_model

journey = timed.generate([ids], SamplingParams(temperature=0, max_tokens=16, ignore_eos=True))[0]
recorder.close()
trace = trace_model.load(io.StringIO(recording.getvalue()))
m = journey.metrics
show(
    trace_figures.latency_figure(trace, journey.request_id),
    "Figure 4. One request from its arrival to its last token, drawn from the record of the run.",
    f"A bar on a time line: prefill until the first token after {digits(1e3 * m.ttft)} milliseconds, then fifteen "
    f"decode steps of about {digits(1e3 * statistics.median(m.itl))} milliseconds each, with brackets TTFT, ITL, E2E.",
)

# %%
print(f"queue   {digits(1e3 * m.queue_time):>7} ms  waiting for a seat")
print(f"prefill {digits(1e3 * m.prefill_time):>7} ms  {len(ids)} tokens side by side")
print(f"decode  {digits(1e3 * m.decode_time):>7} ms  {m.output_tokens - 1} steps")
print(f"sum     {digits(1e3 * m.e2e):>7} ms  from sending to the last token (E2E)")
print(f"TTFT = queue + prefill = {digits(1e3 * m.ttft)} ms")

# %% [markdown]
# ## Explain
#
# Two phases, two characters. It is worth saying slowly, since the whole field is built around it.
#
# **Prefill is arithmetic.** All tokens of the prompt go through the model side by side. They share one reading of the
# weights, so reading hardly counts; multiplying does. Twice the prompt is about twice the multiplying.
#
# **Decode is reading.** One token needs every weight, but only for one multiplication each. The processor waits for
# memory most of the time. Eight tokens of eight people need the same weights: they come once, and are used eight times.
# What eight people do *not* share is the KV cache; each step reads everybody's own.
#
# So the pause is about how fast your machine multiplies, and the tick about how fast it reads. Buying a processor with
# twice the arithmetic shortens the pause only. Weights in half the bytes shorten the tick only.

# %%
prefill_flops = 2 * 512 * num_parameters(c)  # two operations per weight and token
print(f"prefill of 512: {digits(prefill_flops / 1e9)} GFLOP for {digits(weight_mb)} MB of weights", end=", ")
print(f"{digits(prefill_flops / (weight_mb * 1e6))} FLOPs for each byte read")
print(f"decode of one:  {digits(prefill_flops / 512e9)} GFLOP for {digits(step_mb)} MB", end=", ")
print(f"{digits(prefill_flops / 512 / (step_mb * 1e6))} FLOPs for each byte read")

# %% [markdown]
# The last column, FLOPs per byte, is the number that tells the two apart before anything is timed. Notebook 06 makes a
# picture of it, the roofline, and puts your machine's measured limits into it.
#
# If your figures came from `tiny`, one caution: its weights are so few that most of its time is neither reading nor
# arithmetic but **overhead**, the cost of Python and of many small calls. That is a third regime, and real.

# %% [markdown]
# ## Compare
#
# The same stations in engines that serve millions. Open one of these files beside ours; you will know your way.
#
# | station | minifer | vLLM | llama.cpp | Ollama |
# |---|---|---|---|---|
# | who runs | `scheduler/continuous.py` | `vllm/v1/core/sched/scheduler.py` | `tools/server/server-context.cpp` | `runner/ollamarunner/runner.go` |
# | the loop | `engine.py` | `vllm/v1/engine/core.py` | `tools/server/server-queue.cpp` | `runner/ollamarunner/runner.go` |
# | the model | `model/transformer.py` | `vllm/model_executor/models/llama.py` | `src/models/llama.cpp` | `model/models/llama/model.go` |
# | what is kept | `kv_cache/` | `vllm/v1/core/kv_cache_manager.py` | `src/llama-kv-cache.cpp` | `kvcache/causal.go` |
# | the draw | `sampling.py` | `vllm/v1/sample/sampler.py` | `src/llama-sampler.cpp` | `sample/samplers.go` |
#
# [MAP.md](MAP.md) has every file, [GLOSSARY.md](GLOSSARY.md) every word.

# %% [markdown]
# ## Five questions
#
# <details><summary>1. What makes TTFT grow?</summary>The length of the prompt (template included), because every token
# of it must be multiplied through the model before the first word; and the queue, the time until the scheduler gives
# the request a seat.</details>
#
# <details><summary>2. How many bytes does a decode step read?</summary>All weights once, plus the KV cache of every
# sequence in the batch: parameters times bytes per weight + tokens so far times KV bytes per token. Station 6 printed
# both for your model.</details>
#
# <details><summary>3. Why isn't a batch of eight eight times slower?</summary>The eight share one reading of the
# weights, and reading is what a decode step waits for. Only the arithmetic and each one's own KV cache are
# eightfold.</details>
#
# <details><summary>4. How do you find the KV bytes of a prompt without measuring anything?</summary>2 (key and value)
# x layers x kv heads x head size x bytes per number, times the tokens of the prompt.</details>
#
# <details><summary>5. A request waits although the machine looks idle. Which file do you open?</summary>
# <code>minifer/scheduler/continuous.py</code>: it alone decides who runs, and its plan says who had to wait and
# why.</details>

# %% [markdown]
# ## Three numbers to write down
#
# Keep them: you will meet all three again, in notebooks 05, 06 and 07, and then you will be able to improve them.

# %%
print(f"1. TTFT of a prompt of 512 tokens:      {digits(ttfts[-1])} ms")
print(f"2. ITL of a request alone:              {digits(itl_ms)} ms")
print(f"3. a step for eight, in steps for one:  {digits(batch_ms[-1] / batch_ms[0])}")
