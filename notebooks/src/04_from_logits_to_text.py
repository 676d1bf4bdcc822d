# %% [markdown]
# # 04. From logits to text
#
# **The model has given a number to every token it knows. Who chooses, and how much of the answer is chance?**
#
# The model never writes a word. It hands over a list of scores, and a few lines of code make text of it. Change those
# lines, and the same model becomes dull, lively, or deranged. You will watch the distribution being shaped, predict
# what each filter leaves, count the draws, and write the filters.
#
# About 45 minutes, of which the machine computes less than one. Two cores, 1.5 GB of memory, no GPU.

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
import math

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
            ("logits", "one per token"),
            ("temperature()", "sharper or flatter"),
            ("top_k()", "the k best"),
            ("top_p()", "the best p of it all"),
            ("draw()", "one of what is left"),
        ],
        back="the token joins the text, and the model is asked again",
    ),
    "Figure 1. Filters push scores down to minus infinity, and one draw decides.",
    "Five boxes in a row: logits, temperature, top k, top p, draw. An arrow leads from the last back to the first.",
)

# %% [markdown]
# ## See
#
# One model, one prompt, four temperatures. Nothing else changes, the seed included.

# %%
from minifer import LLM, SamplingParams

models = notebook.choose_models()
llm = LLM(models.text, room="reference", max_model_len=256, max_num_seqs=1)
PROMPT = "My favourite animal is the"
print(models.note or models.text)
for temperature in (0, 0.7, 1.0, 2.0):
    params = SamplingParams(temperature=temperature, max_tokens=12, seed=1)
    print(f"{temperature:>4}: {PROMPT}{llm.generate(PROMPT, params)[0].text!r}")

# %% [markdown]
# At the top a text that will be the same forever. At the bottom, most likely, rubble. Between them lies what you know
# from chat programs. Here are the scores before anybody chooses:

# %%
from minifer.incremental import Incremental
from minifer.sampling import draw, keep_top_k, keep_top_p, uniform

sequence = Incremental(llm.weights, llm.ops.new_store(1, 64), llm.ops)
logits = sequence.prefill(llm.encode(PROMPT))[0].copy()


def probabilities(scores):
    """The softmax of scores, in float64; dropped tokens (-inf) get 0."""
    weights = np.exp((scores - scores.max()).astype(np.float64))
    return weights / weights.sum()


p = probabilities(logits)
order = np.argsort(-p)
for token in order[:6]:
    print(f"{llm.tokenizer.decode([int(token)])!r:>12}  {digits(100 * p[token]):>6} %")
print(f"and {len(p) - 6:,} others share {digits(100 * (1 - p[order[:6]].sum()))} %")

# %% [markdown]
# The last line is the trouble. Each of those tens of thousands is unlikely, but together they are not. Draw ten
# words and you will meet some of them, and the model must go on from there.
#
# ## Predict
#
# Put a number in place of each `None`.
#
# 1. Top-p with p = 0.9: how many tokens stay in the game here?
# 2. At temperature 2, what is the probability of the favourite, in percent?
# 3. How likely is it that 10 draws from the plain distribution never leave the 50 best tokens, in percent?

# %%
guesses = notebook.Guesses()
guesses.predict("tokens that top-p 0.9 keeps", None)
guesses.predict("favourite at temperature 2, percent", None)
guesses.predict("10 draws within the 50 best, percent", None)

# %% [markdown]
# ## Run
#
# ### Temperature
#
# Scores are divided by the temperature before the softmax. Below 1 the gaps grow, above 1 they shrink.

# %%
figure, ax = plt.subplots()
ranks = np.arange(1, 1001)
for temperature in (0.5, 1.0, 2.0):
    shaped = probabilities(logits / np.float32(temperature))
    ax.loglog(ranks, np.sort(shaped)[::-1][: len(ranks)], label=f"temperature {temperature}")
ax.set(xlabel="rank of the token", ylabel="probability", ylim=(1e-8, 1))
ax.legend()
hot = 100 * probabilities(logits / np.float32(2)).max()
show(
    figure,
    "Figure 2. Temperature turns the distribution about its top: steeper when cold, flatter when hot.",
    f"Log-log lines of probability over rank for temperatures 0.5, 1 and 2; the favourite has {digits(100 * p.max())} "
    f"percent at temperature 1 and {digits(hot)} percent at 2.",
)
guesses.reveal("favourite at temperature 2, percent", hot)

# %% [markdown]
# ### Top-k and top-p
#
# Top-k keeps a fixed number of tokens. Top-p keeps as many of the best as are needed to reach a share of the
# probability: few where the model is sure, many where it isn't. See it on two places, one sure and one not.

# %%
sure = Incremental(llm.weights, llm.ops.new_store(1, 64), llm.ops)
sure_logits = sure.prefill(llm.encode("Monday, Tuesday, Wednesday, Thursday,"))[0].copy()
for name, scores in ((PROMPT, logits), ("Monday, ... Thursday,", sure_logits)):
    counts = [int((keep_top_p(scores, share) > -np.inf).sum()) for share in (0.5, 0.9, 0.99)]
    print(f"{name:<28} top-p 0.5, 0.9, 0.99 keep {counts} tokens; top-k 50 keeps 50")
guesses.reveal("tokens that top-p 0.9 keeps", int((keep_top_p(logits, 0.9) > -np.inf).sum()))
guesses.reveal("10 draws within the 50 best, percent", 100 * np.sort(p)[-50:].sum() ** 10)

# %%
kept = {
    "before": p,
    "top-k 8": probabilities(keep_top_k(logits, 8)),
    "top-p 0.5": probabilities(keep_top_p(logits, 0.5)),
}
figure, ax = plt.subplots()
at = np.arange(12)
looks = (("#DDDDDD", ""), (notebook.ORANGE, "//"), (notebook.SKY, ".."))
for i, ((name, values), (colour, hatch)) in enumerate(zip(kept.items(), looks, strict=True)):
    ax.bar(at + 0.28 * (i - 1), values[order[:12]], 0.28, color=colour, hatch=hatch, edgecolor="black", label=name)
words = [llm.tokenizer.decode([int(token)]).strip().replace("$", r"\$") for token in order[:12]]
ax.set_xticks(at, words, rotation=40, ha="right")
ax.set(ylabel="probability")
ax.legend()
show(
    figure,
    "Figure 3. A filter takes the tail away and gives its share to those that stay.",
    f"Bars for the twelve best tokens before and after two filters; the favourite rises from {digits(100 * p.max())} "
    f"to {digits(100 * kept['top-k 8'].max())} percent with the eight best.",
)

# %% [markdown]
# ### The draw
#
# One number between 0 and 1, laid on a ruler on which every token has a stretch as long as its probability. In minifer
# that number is a hash of the seed and the position, so it depends on nothing else: not on the neighbours in the
# batch, not on what ran before.

# %%
kept8 = keep_top_k(logits, 8)
draws = [draw(kept8, uniform(seed, 5)) for seed in range(1000)]
for token in order[:8]:
    share, expected = np.mean(np.array(draws) == token), kept["top-k 8"][token]
    print(f"{llm.tokenizer.decode([int(token)])!r:>12}  drawn {digits(100 * share):>5} %,", end=" ")
    print(f"expected {digits(100 * expected):>5} %")
error = math.sqrt(expected * (1 - expected) / len(draws))
print(f"(1,000 draws: for the last one, a standard error of {digits(100 * error)} % is to be expected)")

# %% [markdown]
# ## Explain
#
# **Why filters at all?** The softmax cannot say zero. Every token keeps a sliver, and with a vocabulary of this size
# the slivers add up. A long answer makes hundreds of draws: even one percent of rubbish per draw hits almost every
# answer. Your third prediction was about that.
#
# **Why top-p rather than top-k?** Because how many continuations make sense changes from word to word. After "Thursday,"
# there is one; after "is the" there are dozens. A fixed k is too many here and too few there.
#
# **Order matters.** Temperature comes first here, then top-k, then top-p, as in vLLM. With a high temperature top-p sees a
# flatter distribution and keeps more. llama.cpp by default puts temperature last. The same numbers, another text.

# %%
for temperature in (0.7, 1.0, 1.5):
    first = (keep_top_p(logits / np.float32(temperature), 0.9) > -np.inf).sum()
    print(f"temperature {temperature}, then top-p 0.9: {first:>5} tokens; the other way round always", end=" ")
    print((keep_top_p(logits, 0.9) > -np.inf).sum())

# %% [markdown]
# ## Build
#
# **Task 4.1, `keep_top_k`** (20 minutes). The k largest scores stay, all others become -inf; among equals at the cut
# the smaller ids stay; k <= 0 keeps everything.
#
# <details><summary>Hint 1</summary>Find the k-th largest value: <code>np.partition(scores, -k)[-k]</code>.</details>
# <details><summary>Hint 2</summary>Keep all above it, then of those equal to it the first few:
# <code>np.flatnonzero(scores == cut)[:rest]</code>.</details>


# %%
def my_keep_top_k(scores, k):
    """my_keep_top_k(np.array([1.0, 2.0, 2.0, 2.0]), 2) is [-inf, 2, 2, -inf]."""
    raise NotImplementedError("task 4.1")


check("4.1", my_keep_top_k)

# %% [markdown]
# **Task 4.2, `keep_top_p`** (30 minutes). The smallest set of best tokens that reaches p, the one that crosses p
# included; at least one.
#
# <details><summary>Hint 1</summary>Softmax, then a stable argsort of the negated values.</details>
# <details><summary>Hint 2</summary>Count those whose sum <em>before</em> them is below p.</details>


# %%
def my_keep_top_p(scores, p):
    """For probabilities 0.4, 0.3, 0.2, 0.1 and p = 0.8 the first three stay."""
    raise NotImplementedError("task 4.2")


check("4.2", my_keep_top_p)

# %% [markdown]
# **Task 4.3, `draw`** (20 minutes). The token, in order of id, at which the cumulative probability first exceeds `u`.
#
# <details><summary>Hint 1</summary>Scores aren't normalised: compare with u times the total.</details>
# <details><summary>Hint 2</summary><code>np.searchsorted(..., side="right")</code>; and never a token at -inf, even if u
# is just under 1 and rounding carries you past the end.</details>


# %%
def my_draw(scores, u):
    """The token at which the cumulative probability first exceeds u in [0, 1)."""
    raise NotImplementedError("task 4.3")


check("4.3", my_draw)

# %% [markdown]
# Task 4.4, stop strings that may begin in one token and end in another, waits in the labs: `minifer labs start 4`.
#
# ## Break
#
# A top-p that somebody simplified; one comparison in it is wrong. People say: "with p = 0.5 your model has become deterministic, in places."

# %%
import inspect

from minifer.apps.notebook_bugs import planted

broken_top_p = planted("4.2", "0ca3")
example = np.log(np.array([0.4, 0.3, 0.2, 0.1], dtype=np.float32))
for share in (0.3, 0.5, 0.8, 0.95):
    right, wrong = (f(example, share) > -np.inf for f in (keep_top_p, broken_top_p))
    print(
        f"p = {share}: kept {probabilities(example)[right].round(1)}, broken {probabilities(example)[wrong].round(1)}"
    )

# %% [markdown]
# What do the wrong rows have in common? Write down a guess; then read the code.

# %%
print(inspect.getsource(broken_top_p))

# %% [markdown]
# <details><summary>The bug</summary>
#
# It counts the tokens whose sum <em>including themselves</em> is at most p, so the one that crosses p is thrown away: what
# stays has less than p, not at least p. With one token of 0.4 and another of 0.3, p = 0.5 leaves one. Ask for the sum
# before the token. It is one of the bugs with which the tests of the labs are tested:
# <code>tests/bugs/phase04/top_p_loses_the_crossing.py</code>.
#
# </details>

# %%
check("4.2", broken_top_p)

# %% [markdown]
# ## Compare
#
# | | file | look for |
# |---|---|---|
# | **the pipeline** in vLLM | `vllm/v1/sample/sampler.py` | `Sampler.forward`, its docstring lists the order |
# | llama.cpp | `common/sampling.cpp` | `common_sampler_init` |
# | Ollama | `sample/samplers.go` | `sample` |
# | **the filters** in vLLM | `vllm/v1/sample/ops/topk_topp_sampler.py` | `apply_top_k_top_p` |
# | llama.cpp | `src/llama-sampler.cpp` | `llama_sampler_top_p_apply` |
# | Ollama | `sample/transforms.go` | `topP` |

# %% [markdown]
# ## Five questions
#
# <details><summary>1. What is temperature 0?</summary>Division by zero, if taken at its word. It means greedy: the
# largest score, no draw.</details>
#
# <details><summary>2. Why does greedy decoding not need the softmax?</summary>It never changes the order.</details>
#
# <details><summary>3. Two users with the same seed and prompt, one alone and one in a batch of eight. The same text?
# </summary>The same random numbers, since they hang on seed and position only. The logits can differ in their last bits
# between kernels, and that matters where two tokens are nearly tied.</details>
#
# <details><summary>4. Top-p 0.9 and then top-k 50, or the other way round: is it the same?</summary>Not always: after
# top-k the remaining shares are larger, so that top-p reaches 0.9 sooner and keeps fewer.</details>
#
# <details><summary>5. Why do bad samplers seldom show up in tests of text?</summary>Any text could have been drawn. Only
# counts show it: draw often, compare shares with probabilities.</details>

# %% [markdown]
# ## Three numbers to write down

# %%
print(f"1. tokens that top-p 0.9 keeps here:      {int((keep_top_p(logits, 0.9) > -np.inf).sum())}")
print(f"2. favourite at temperature 1 and 2:      {digits(100 * p.max())} % and {digits(hot)} %")
print(f"3. share outside of the 50 best:          {digits(100 * (1 - np.sort(p)[-50:].sum()))} %")
