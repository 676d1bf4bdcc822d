# %% [markdown]
# # 08. Paged KV and prefix caching
#
# **Where in memory is token 84, and who else is using it?**
#
# A KV cache is the largest thing that a server has to hand out, and nobody says in advance how much he will need. You
# will hand it out in pages, as an operating system does; measure what that saves; let four people share a prompt that
# only one of them paid for; and then lock the door through which one person's text can get into another's answer.
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
from dataclasses import asdict, replace

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
            ("token 84", "its position in the text"),
            ("84 // 16", "place 5 in the table"),
            ("table[5]", "say, block 9"),
            ("9 * 16 + 84 % 16", "slot 148"),
            ("slot 148", "keys and values"),
        ],
        back="the next token goes into the next slot; every 16 tokens the table gets one block more",
    ),
    "Figure 1. Two divisions and one look into a table lead from a token to its place in memory.",
    "Five boxes in a row: token 84; 84 divided by 16 is place 5 in the table; table at 5 says block 9; 9 times 16 plus "
    "84 modulo 16; slot 148 with its keys and values. An arrow leads back: the next token goes into the next slot.",
)

# %% [markdown]
# ## See
#
# First the finished thing. Four people use the same assistant. Its instructions, the *system prompt*, stand before
# every question. Watch the second column.

# %%
from minifer import LLM, SamplingParams

models = notebook.choose_models()
options = {"num_blocks": 128, "max_model_len": 1024}
llm = LLM(models.speed, **options)
text_llm = llm if models.text == models.speed else LLM(models.text, **options)
print(models.note or f"{models.text}: a pool of {llm.limits.num_blocks} blocks of {llm.limits.block_size} tokens")

# %%
SYSTEM = "You are the assistant of a small museum of clocks. The museum is open from ten to six, not on Mondays. " * 6
QUESTIONS = ["When do you open?", "Are you open on Monday?", "What can I see?", "When do you open?"]

for question in QUESTIONS:
    prompt = text_llm.encode_chat([{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}])
    answer = text_llm.generate([prompt], SamplingParams(temperature=0, max_tokens=16))[0]
    seen = answer.metrics
    print(f"{question:<24} {seen.cached_tokens:>3} of {len(prompt)} tokens found, ", end="")
    print(f"TTFT {digits(1e3 * seen.ttft):>5} ms   {answer.text!r}")

# %% [markdown]
# The first one paid for everybody. And look at the last line: the very same question as the first, and still not *all*
# of its tokens were found. You will know why before the hour is over.
#
# ## Predict
#
# 1. A server reserves 1,024 slots for every request, because it may become that long. The requests turn out to have 150
#    tokens in the end, on average. What share of the reserved slots, in percent, is ever written?
# 2. A prompt of 512 tokens that are known and 64 that are new. Its TTFT, in percent of that of a stranger's 576?
# 3. One prompt of 100 tokens, four different answers of 20 tokens each. How many blocks of 16 hold all of it? (Four
#    separate copies would take 32.)

# %%
guesses = notebook.Guesses()
guesses.predict("reserved slots that are ever written, percent", None)
guesses.predict("TTFT with 512 of 576 tokens known, percent", None)
guesses.predict("blocks for four answers to one prompt", None)

# %% [markdown]
# ## Run
#
# ### 1. A pool by hand
#
# The pool never sees a key or a value. It knows numbers of blocks, and how often each is held.

# %%
from minifer.kv_cache.pool import BlockPool

pool = BlockPool(num_blocks=12, block_size=4)
ann = pool.allocate(pool.blocks_for(6))
bob = pool.allocate(pool.blocks_for(9))
print(f"ann, 6 tokens: table {ann}    bob, 9 tokens: table {bob}    free: {pool.num_free}")
ann, bob = pool.grow(ann), pool.grow(bob)
print(f"both grow:     table {ann} and {bob}    free: {pool.num_free}")
print(f"ann's tokens 0 to 9 lie in slots {pool.slots(ann, 0, 10)}")
pool.free(ann)
cat = pool.allocate(7)
print(f"ann leaves, and cat wants seven blocks. Nowhere are seven in a row: {cat}")
print(f"cat's tokens 16 to 23 lie in slots {pool.slots(cat, 16, 24)}")

# %% [markdown]
# Two things to see. `bob` did not start right behind `ann`: the pool leaves her room to grow, because reading a run of
# neighbours is faster than jumping. And where no run is long enough, a table jumps (look at `cat`'s slots), and nothing
# breaks: attention asks the table. **No request needs its memory in one piece**, so no gap is ever too small to be of
# use.
#
# ### 2. What reserving costs
#
# How many of the held slots are written, on average over a request's life? With a reservation for the longest possible
# answer, and with blocks of several sizes.

# %%
LONGEST, SIZES = 1024, [1, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
lengths = np.minimum(1 + rng.exponential(150, 2000).astype(int), LONGEST)


def written_share(size):
    """Of the slots that requests hold, added up over all steps of their lives: the share that is written."""
    written = held = 0
    for length in lengths:
        tokens = np.arange(1, length + 1)
        written += tokens.sum()
        held += (-(-tokens // size) * size).sum()
    return 100 * written / held


guesses.reveal("reserved slots that are ever written, percent", 100 * lengths.sum() / (LONGEST * len(lengths)))
shares = [written_share(size) for size in SIZES]
print(
    f"blocks of 16: {digits(shares[SIZES.index(16)])} % written; one block of {LONGEST} each, which is a reservation: "
)
print(f"{digits(shares[-1])} %. So {digits(shares[SIZES.index(16)] / shares[-1])} times as many requests fit.")

# %%
figure, ax = plt.subplots(figsize=(8, 3.2))
ax.plot(SIZES, shares, "o-", color=notebook.BLUE)
ax.annotate("here", (16, shares[SIZES.index(16)]), (0, -28), textcoords="offset points", ha="center",
            arrowprops={"arrowstyle": "->"})  # fmt: skip
ax.set(xscale="log", xticks=SIZES, xticklabels=SIZES, xlabel="tokens in a block", ylim=(0, 105))
ax.set_ylabel("held slots that are written, %")
show(
    figure,
    "Figure 2. The smaller the block, the less is held in vain.",
    f"The share of held slots that are written falls from 100 percent with blocks of one token to "
    f"{digits(shares[SIZES.index(16)])} with 16, {digits(shares[SIZES.index(128)])} with 128 and {digits(shares[-1])} "
    f"percent where a request holds {LONGEST} slots from the start.",
)

# %% [markdown]
# Why not blocks of one token, then? Tables become long, every token needs bookkeeping, and the reads are torn into
# small pieces. At 16 nearly everything is gained. The waste of a paged cache is at most one block less one slot per
# request, whatever its length.
#
# ### 3. The chain
#
# To share a block, somebody must find it. By what name? By its tokens, says the first idea. But the keys and values of
# a token depend on *every token before it* (through the layers below). So the name of a block is a hash over its tokens
# **and the name of the block before it**.

# %%
from minifer.kv_cache.prefix import extend_chain


def names(ids):
    """The names of the full blocks of four tokens, in short."""
    chain = []
    extend_chain(chain, ids, block_size=4)
    return "  ".join(f"{list(key.ids)!s:<16} {key.digest.hex()[:6]}" for key in chain)


print("ann   ", names([5, 6, 7, 8, 1, 1, 2, 2, 9, 9, 9, 9]))
print("bob   ", names([5, 6, 7, 8, 1, 1, 2, 2, 4, 4, 4, 4]))
print("cat   ", names([5, 6, 7, 0, 1, 1, 2, 2, 9, 9, 9, 9]))
print("dan   ", names([5, 6, 7, 8, 1, 1, 2]))

# %% [markdown]
# `ann` and `bob` share two names and part ways at the third. `cat` differs from `ann` in one token of the first block,
# and *all* her names differ, although her second and third block hold the same tokens. `dan`'s second block isn't full
# and has no name: it will still be written to.
#
# Now measure what a find is worth: 512 tokens that everybody shares, 64 of one's own.


# %%
def ttft_ms(ids):
    """The milliseconds to the first token of a prompt, and how many of its tokens were found."""
    seen = llm.generate([ids], SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))[0].metrics
    return 1e3 * seen.ttft, seen.cached_tokens


def some(count):
    """So many random token ids."""
    return rng.integers(0, llm.vocab_size, count).tolist()


ttft_ms(some(64))  # once for nothing
shared = some(512)
stranger_ms, _ = min(ttft_ms(some(576)) for _ in range(2))
ttft_ms(shared + some(64))  # pays for the 512
known_ms, found = min(ttft_ms(shared + some(64)) for _ in range(3))
print(f"nothing known: {digits(stranger_ms)} ms;  {found} of 576 known: {digits(known_ms)} ms")
guesses.reveal("TTFT with 512 of 576 tokens known, percent", 100 * known_ms / stranger_ms)

# %% [markdown]
# ### 4. How large must the pool be?
#
# Blocks that nobody holds any more stay findable until somebody needs room. So what is found depends on the size of the
# pool. Eight assistants with prompts of 128 tokens take turns at random, and a stand-in does the work of the model:
# only the plans count here.

# %%
from minifer.engine import Engine
from minifer.limits import EngineConfig
from minifer.scheduler.continuous import ContinuousScheduler
from minifer.scheduler.fake import FakeExecutor
from minifer.scheduler.request import Request

systems = [some(128) for _ in range(8)]
visits = [systems[i] + some(16) for i in rng.integers(0, 8, 200)]


def hit_rate(num_blocks):
    """Percent of the prompt tokens that were found, with a pool of this size."""
    scheduler = ContinuousScheduler(EngineConfig(num_blocks=num_blocks, max_num_seqs=2))
    engine = Engine(scheduler, FakeExecutor(num_blocks, 16))
    for number, ids in enumerate(visits):
        engine.add(Request(f"r{number}", tuple(ids), SamplingParams(max_tokens=4), float(number)))
    engine.run()
    return 100 * scheduler.prefix_hits / scheduler.prefix_queries


pools = [20, 30, 40, 50, 60, 70, 80, 90, 100, 120, 150]
rates = [hit_rate(blocks) for blocks in pools]

# %%
working_set = 8 * 128 // 16
figure, ax = plt.subplots(figsize=(8, 3.2))
ax.plot(pools, rates, "o-", color=notebook.BLUE)
ax.axvline(working_set, color=notebook.VERMILLION, linestyle="--", label=f"all eight prompts: {working_set} blocks")
ax.axhline(100 * 128 / 144, color=notebook.GREY, linestyle=":", label="all that could be found: 128 of 144 tokens")
ax.set(xlabel="blocks in the pool", ylabel="tokens found, %", ylim=(0, 100))
ax.legend(loc="lower right")
show(
    figure,
    "Figure 3. Until the pool holds all that comes back, every block more finds more.",
    f"The hit rate rises from {digits(rates[0])} percent with {pools[0]} blocks to {digits(rates[-1])} with "
    f"{pools[-1]}. It rises until the pool holds all eight system prompts, {working_set} blocks, and what runs beside them.",
)

# %% [markdown]
# ### 5. The map
#
# Now all of it at once, on the real model: one short system prompt, six visitors, and a pool of only 14 blocks, so that
# somebody will have to give his back. Each row is a block; its fill rises as tokens are written into it.

# %%
from minifer.apps.view import trace_block_figures, trace_data, trace_model
from minifer.executor import ModelExecutor
from minifer.trace import TraceWriter


def watch(asked, **limits):
    """Serve `asked`, (ids, answer length, steps to wait, answers n), on the model. The trace, and the answers' ids."""
    limits = replace(llm.limits, **limits)
    log, coming, steps, said = io.StringIO(), list(enumerate(asked, start=1)), 0, {}
    about = {"model": llm.name, "kv_bytes_per_token": llm.config.kv_bytes_per_token}
    with TraceWriter(log, asdict(limits), about) as trace:
        executor = ModelExecutor(llm.weights, llm.store, llm.ops, llm.device)
        engine = Engine(ContinuousScheduler(limits), executor, trace=trace)
        while coming or engine.has_work:
            while coming and coming[0][1][2] <= steps:
                number, (ids, length, _, n) = coming.pop(0)
                params = SamplingParams(temperature=1, seed=number, max_tokens=length, ignore_eos=True, n=n)
                engine.add(Request(f"r{number}", tuple(ids), params, engine.clock.now()))
            for event in engine.step():
                said.setdefault(event.request_id, []).append(event.token_id)
            steps += 1
    return trace_model.load(io.StringIO(log.getvalue())), said


# %%
hello = some(48)
visitors = [(hello + some(20), length, start, 1) for length, start in
            ((44, 1), (40, 3), (60, 5), (34, 7), (20, 20), (24, 30))]  # fmt: skip
trace, _ = watch(visitors, num_blocks=14, max_num_seqs=4, max_model_len=224)
data = trace_data.blocks(trace)
preempted = sum(len(step.preempted) for step in trace.steps)
show(
    trace_block_figures.blocks_figure(trace),
    "Figure 4. Who holds which block when, and how much of the pool is written, held, and merely findable.",
    f"Above, {data['num_blocks']} rows of blocks over time with the names of six requests; three rows with a dark edge "
    f"hold the common prompt for all of them. {preempted} times a request gave its blocks back. Below, the use of the "
    "pool in blocks: written, held and not written, free but findable, and what it would take without sharing.",
)

# %% [markdown]
# Take a minute for this picture. The rows with the dark edge hold the common prompt: *once*, for all. The dashed line
# below is what the same requests would have taken without sharing; it rises above the pool, so without it more of them
# would have had to wait. And where a request disappears and comes back later, it was preempted: find out from the map
# who needed its blocks.
#
# ### 6. Copy on write
#
# Four answers to one prompt of 100 tokens. Six blocks of it are full and stay as they are. The seventh holds four
# tokens and has room for twelve more. Whose?

# %%
trace, said = watch([(some(100), 20, 0, 4)], max_num_seqs=4)
for step in trace.steps[:3]:
    running = [f"{trace.lives[life].id}+{work.count}" for life, work in step.ran]
    print(f"step {step.number}: {' '.join(running)}", "".join(f"; block {a} copied to {b}" for a, b in step.copies))
most = max(use["held"] for use in trace_data.blocks(trace)["usage"])
print(f"most blocks held at a time: {most}")
guesses.reveal("blocks for four answers to one prompt", most)
print("four answers, four different beginnings:", [ids[:3] for ids in said.values()])

# %% [markdown]
# The prompt went through the model once. Then all four tables named the same seven blocks, each held four times. The
# first to *write* into the seventh gets a copy of it, so does the second, and the third; the last one holds it alone
# by then and needs none. Sharing costs nothing until somebody writes.

# %% [markdown]
# ## Explain
#
# **One indirection, four gifts.** Token to slot goes through a table. Because of that one step,
#
# * memory is given out when it is needed, not when it might be (figure 2);
# * no request needs neighbouring blocks, so nothing is ever too scattered to be used;
# * two tables may name the same block (figure 4), and so one prompt serves many;
# * a request can give everything back and get other blocks later; its text does not care which.
#
# What the table costs is paid by attention, which has to follow it.
#
# **What may be shared?** Only what was computed from the same *whole* prefix, only *full* blocks (they are never
# written again), and only after the step that filled them has ended. And at least one token must be left to compute,
# because someone has to produce the logits for the next one. That is the riddle of the first cell: the same question
# was known to the last token, but its last block was not full; and had it been, it would have been left out on purpose.
#
# **Who goes first?** Of the blocks that nobody holds, the one unused for longest. A table is given back from its end,
# so the tail of a chain goes before its head: a head without a tail is still useful, a tail without a head never.

# %%
per_token = llm.config.kv_bytes_per_token
print(f"one token: {per_token:,} bytes; a block of 16: {digits(16 * per_token / 1e6)} MB; ", end="")
print(f"the system prompt of 512 tokens: {digits(512 * per_token / 1e6)} MB, once instead of once per visitor")

# %% [markdown]
# ## Build
#
# **Task 8.1, `slots`** (10 minutes). Where are positions `start` to `stop`? A tuple of slots, for any table. `self` is
# the pool and knows its `block_size`.
#
# <details><summary>Hint 1</summary>Position p lies in block <code>table[p // block_size]</code>.</details>
# <details><summary>Hint 2</summary>Its place within the block is <code>p % block_size</code>.</details>


# %%
def my_slots(self, table, start, stop):
    """The slots of positions `start` to `stop`, which the table must cover.

    With blocks of 4 and the table (7, 2): positions 2 to 6 are in slots (30, 31, 8, 9).
    """
    raise NotImplementedError("task 8.1")


check("8.1", my_slots)

# %% [markdown]
# **Task 8.2, `own`** (30 minutes). Copy on write. Somebody is about to write into the block at place `index` of his
# table, and others hold it too. Give him a new block: return his new table and the pair (old block, new block), which
# tells the model what to copy. `self._take(1, after=...)` hands out a block, if possible the one behind `after`;
# `self._release(block)` takes one reference away; `self.copied` counts.
#
# <details><summary>Hint 1</summary>A table is a tuple: build a new one from its parts.</details>
# <details><summary>Hint 2</summary><code>after</code> is the block in front of <code>index</code>, and -1 at the
# beginning of the table.</details>
# <details><summary>Hint 3</summary>Take the new block <em>before</em> you release the old one. The other way round, the
# pool might hand you the very block that you still have to copy from.</details>


# %%
def my_own(self, table, index):
    """The table with a new block at `index`, and the copy (from, to) that has to be made first."""
    raise NotImplementedError("task 8.2")


check("8.2", my_own)

# %% [markdown]
# **Task 8.4, `extend_chain`** (25 minutes). The names. Append to `chain` the keys of those full blocks of `token_ids`
# that it still lacks. A key is `BlockKey(digest, parent, ids)`; the digest is `digest_of(parent, ids)`, and the parent
# of a first block is `ROOT`.
#
# <details><summary>Hint 1</summary>The chain has <code>len(chain)</code> keys already; begin behind them.</details>
# <details><summary>Hint 2</summary>Where must the loop stop, so that no block is begun that isn't full?</details>
# <details><summary>Hint 3</summary>The parent is the digest of the key before. <code>ids</code> is a tuple.</details>

# %%
from minifer.kv_cache.prefix import ROOT, BlockKey, digest_of


def my_extend_chain(chain, token_ids, block_size):
    """Append to `chain` the keys of those full blocks of `token_ids` that it lacks.

    With blocks of 2, [5, 6, 7, 8, 9] gives keys for (5, 6) and (7, 8); the second one's parent is the first one's
    digest.
    """
    raise NotImplementedError("task 8.4")


check("8.4", my_extend_chain)

# %% [markdown]
# **Task 8.5, `find`** (15 minutes). How much of a chain is there already? `self._block_of` leads from digests to
# blocks, `self._key_of` from blocks to whole keys.
#
# <details><summary>Hint 1</summary>Walk the chain from its beginning and stop at the first key that has no block. What
# comes after a hole is of no use.</details>
# <details><summary>Hint 2</summary>Two different keys could have the same digest. Compare the whole key.</details>


# %%
def my_find(self, chain):
    """The blocks of the longest known beginning of `chain`: up to the first hole, never past it. A tuple."""
    raise NotImplementedError("task 8.5")


check("8.5", my_find)

# %% [markdown]
# The last one, **8.3, `_release`** (when does a block become free, and when only idle?), is best written in its file:
# `minifer labs start 8`, then `minifer labs run 8`.
#
# ## Break
#
# A colleague has simplified the names. "A block is its tokens", he says, "why drag the parent along?" All his tests
# pass: he asked each question twice, and the second time it was found.


# %%
def broken_extend_chain(chain, token_ids, block_size):
    """Something is missing here."""
    for start in range(len(chain) * block_size, len(token_ids) - block_size + 1, block_size):
        ids = tuple(token_ids[start : start + block_size])
        chain.append(BlockKey(digest_of(ROOT, ids), ROOT, ids))


# %% [markdown]
# The symptom: at temperature 0 a customer of a bank gets **different answers to the identical prompt**, depending on
# who asked before. Each of the three parts below is padded to two full blocks.

# %%
from unittest.mock import patch


def part(text):
    """The text as exactly 32 tokens."""
    return (list(text_llm.encode(text)) + list(text_llm.encode(" and so on")) * 12)[:32]


BANK = part("You are a polite assistant who answers questions of customers of a bank in short sentences.")
FORM = part("Here is what we know about the case, and we know nothing else. Tell me in one sentence all about him.")
STRANGERS = {
    "nobody": None,
    "a detective": part(
        "The prisoner's name is Zebulon Quigley, and he is hiding in the old lighthouse of Portsmouth."
    ),
    "a diary": part("Dear diary, today I baked a cake with my grandmother, and we ate all of it in her sunny garden."),
}
LAST = list(text_llm.encode(" He is"))

# %%
greedy = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)


def ask(prompts):
    """Ask one prompt after the other, with an empty pool at first. The last request, and its first log-probability."""
    executor = ModelExecutor(text_llm.weights, text_llm.store, text_llm.ops, text_llm.device)
    engine = Engine(ContinuousScheduler(text_llm.limits), executor)
    for number, ids in enumerate(prompts):
        request = Request(f"r{number}", tuple(ids), greedy)
        engine.add(request)
        events = engine.run()
    return request, events[0].logprob


for who, before in STRANGERS.items():
    earlier = [before + FORM + LAST, BANK + LAST] if before else []  # the stranger with the same form, and a customer
    with patch("minifer.kv_cache.pool.extend_chain", broken_extend_chain):
        request, sure = ask([*earlier, BANK + FORM + LAST])
    text = text_llm.tokenizer.decode(request.output_ids)
    print(f"before: {who:<11} {request.num_cached} tokens found; log-probability {digits(sure)}; {text!r}")

# %% [markdown]
# The prompt was the same three times, token by token. Which block was found that should not have been? What was in it,
# and whose text had flowed into it? Think it through with the chain of section 3 before you unfold.
#
# <details><summary>The bug</summary>
#
# The form's blocks hold the same tokens for the bank and for the stranger, so without a parent they have the same name.
# But their keys and values were computed <em>behind the stranger's text</em>: every layer above the first had looked at
# it. The customer's answer is built on them. That is not only wrong but a leak: what one person wrote shapes what
# another one reads. The digest must contain the parent's: <code>parent = chain[-1].digest if chain else ROOT</code>.
# His tests asked the same question twice, and there the prefix <em>was</em> the same.
#
# </details>
#
# Which test of the phase would have caught it in review?

# %%
check("8.4", broken_extend_chain)

# %% [markdown]
# ## Compare
#
# The same ideas in engines that serve millions (names as in their main branches of 2026; files move now and then):
#
# | | file | look for |
# |---|---|---|
# | **the pool** in vLLM | `vllm/v1/core/block_pool.py` | `BlockPool`, `touch`, `free_blocks` |
# | llama.cpp | `src/llama-kv-cells.h` | cells, one token each, no blocks |
# | Ollama | `kvcache/causal.go` | `StartForward`, the same |
# | **names** in vLLM | `vllm/v1/core/kv_cache_utils.py` | `hash_block_tokens` |
# | **finding** in vLLM | `vllm/v1/core/kv_cache_manager.py` | `get_computed_blocks` |
# | llama.cpp | `tools/server/server-context.cpp` | `get_common_prefix` |
# | Ollama | `runner/ollamarunner/cache.go` | `LoadCacheSlot` |
# | **the queue of free blocks** in vLLM | `vllm/v1/core/kv_cache_utils.py` | `FreeKVCacheBlockQueue` |

# %% [markdown]
# vLLM's `hash_block_tokens` takes the parent's hash as its second argument, and a *salt* may go in as well, so that
# customers who must not even notice each other's hits (a hit is faster, and that can be measured) have separate chains.
# llama.cpp and Ollama share less: a new prompt is compared with what lies in a slot, token by token, and the common
# beginning is kept. One slot, one sequence; so a system prompt lies in as many slots as there are.

# %% [markdown]
# ## Five questions
#
# <details><summary>1. A table is (7, 2, 9), a block has 16 slots. Where is token 40?</summary>40 // 16 is 2 and 40 % 16
# is 8, so in block 9, slot 9 * 16 + 8 = 152.</details>
#
# <details><summary>2. Two prompts differ in their very first token and are otherwise equal. How much can they
# share?</summary>Nothing. Every name contains the first block's, and every key above the first layer has seen that
# token. So put what is the same for all at the <em>beginning</em>, and the user's name at the end.</details>
#
# <details><summary>3. Why can't the last, partly filled block be shared through the cache?</summary>It is still written
# to. Two owners would write different tokens into the same slot. A fork may share it, but whoever writes gets a
# copy.</details>
#
# <details><summary>4. Does a prefix hit shorten ITL?</summary>Not its own: a decode step reads all keys and values,
# found or computed. It shortens TTFT, and by sparing prefill work it shortens the steps that others share with
# it.</details>
#
# <details><summary>5. A preempted request comes back and finds most of its tokens in the cache. Why?</summary>Its full
# blocks were registered and only became idle. If the pool did not need them meanwhile, they are still
# findable.</details>

# %% [markdown]
# ## Three numbers to write down
#
# Notebook 10 will ask what a router should know about them: with several machines, the question becomes *whose* cache
# holds the prompt.

# %%
print(f"1. a block of 16 tokens takes {digits(16 * per_token / 1e6)} MB")
print(f"2. held slots that are written, with blocks of 16: {digits(shares[SIZES.index(16)])} %, reserved: ", end="")
print(f"{digits(shares[-1])} %")
print(f"3. TTFT with 512 of 576 tokens known: {digits(100 * known_ms / stranger_ms)} % of a stranger's")
