# %% [markdown]
# # 03. A transformer forward pass
#
# **Token numbers go in, scores come out. What happens in between, and where does the arithmetic go?**
#
# Less than its reputation suggests: five small functions, a page of code, repeated thirty times. You will watch tokens
# look at each other inside a real model, count its work, and then write the five functions yourself.
#
# About 75 minutes, of which the machine computes less than one. Two cores, 1.5 GB of memory, no GPU.

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
            ("embed()", "a row per token"),
            ("norm()", "to one size"),
            ("attention()", "tokens look back"),
            ("mlp()", "each one by itself"),
            ("head()", "scores"),
        ],
        back="norm, attention, mlp: again for every layer, before the head",
    ),
    "Figure 1. The forward pass: a row of numbers for each token, changed a little by every layer.",
    "Five boxes in a row: embed, norm, attention, mlp, head, with an arrow back labelled: again for every layer.",
)

# %% [markdown]
# ## See
#
# The finished thing first. `reference.Ops` is the textbook's arithmetic; here it gets an extra eye that keeps the
# attention weights of every layer while a sentence passes through.

# %%
from minifer.device import select_device
from minifer.model.load import load_model
from minifer.model.transformer import forward
from minifer.ops import reference
from minifer.ops.batch import make_batch
from minifer.tokenizer import Tokenizer

models = notebook.choose_models()
loaded = load_model(models.text)
c, tokenizer = loaded.config, Tokenizer.from_pretrained(loaded.tokenizer_path)
print(models.note or f"{models.text}: {c.num_hidden_layers} layers, hidden size {c.hidden_size}")
print(f"{c.num_attention_heads} query heads share {c.num_key_value_heads} kv heads of size {c.head_dim}")


# %%
class Watching(reference.Ops):
    """The reference room, which also keeps the attention weights [H, T, S] of each layer."""

    def _attend(self, q_THD, span, store, index):
        k, length = store.k(index)[:, :, : span.context], q_THD.shape[0]
        mask = reference.causal_mask(length, span.context, self.config.window())
        group = q_THD.shape[1] // k.shape[0]
        scores = [q_THD[:, h] @ k[h // group] / q_THD.shape[2] ** 0.5 for h in range(q_THD.shape[1])]
        self.seen[index] = np.stack([reference.softmax(np.where(mask, s, -np.inf)) for s in scores])
        return super()._attend(q_THD, span, store, index)


ops = Watching(c, select_device("cpu"))
ops.seen = {}
weights = ops.prepare(loaded.weights)
ids = tokenizer.encode("The cat sat on the mat because the cat was")
logits = forward(weights, make_batch([(ids, 0, (0,))], len(ids)), ops.new_store(1, len(ids)), ops)[0]
words = [tokenizer.decode([token]).strip() for token in ids]
print(" ".join(words), "->", tokenizer.decode([int(logits.argmax())]))

# %% [markdown]
# A first look inside: for the last layers' heads, who looks at whom? We pick two heads by a rule, not by taste: the one
# that looks most at the token just before, and the one that looks most at the very first token.

# %%
maps = np.stack([ops.seen[layer] for layer in sorted(ops.seen)])  # [layers, H, T, T]
to_previous = np.diagonal(maps, offset=-1, axis1=2, axis2=3).mean(-1)
to_first = maps[:, :, 1:, 0].mean(-1)
figure, axes = plt.subplots(1, 2, figsize=(9, 4.4))
for ax, score, name in ((axes[0], to_previous, "previous"), (axes[1], to_first, "first")):
    layer, head = np.unravel_index(score.argmax(), score.shape)
    ax.imshow(maps[layer, head], cmap="cividis", vmin=0, vmax=1)
    ax.set_xticks(range(len(words)), words, rotation=60, ha="right", fontsize=9)
    ax.set_yticks(range(len(words)), words, fontsize=9)
    ax.set_title(f"looks at the {name}: layer {layer}, head {head}", fontsize=10)
    ax.grid(visible=False)
show(
    figure,
    "Figure 2. Each row is a token and shows where it looks; nothing lies right of the diagonal.",
    "Two attention maps over the words of a sentence. In the left one the bright cells lie just below the diagonal, in "
    "the right one in the first column; above the diagonal all is dark.",
)

# %% [markdown]
# Nobody told these heads what to do. The empty triangle, however, is our doing: the **causal mask**, and it is the reason
# that a KV cache is possible at all (notebook 05). The bright first column is a well-known habit: where a head has
# nothing to say, its weights must still sum to 1, so it leaves them on the first token.
#
# ## Predict
#
# Put a number in place of each `None`.
#
# 1. A prompt of 512 tokens: attention proper (scores and weighted sums) is how many percent of all FLOPs?
# 2. Of the same FLOPs, how many percent go into the feed-forward part (gate, up, down)?
# 3. At how many tokens of prompt does attention take as many FLOPs as all linear layers together?

# %%
guesses = notebook.Guesses()
guesses.predict("attention at 512, percent of FLOPs", None)
guesses.predict("feed-forward at 512, percent of FLOPs", None)
guesses.predict("tokens at which attention equals the linears", None)

# %% [markdown]
# ## Run
#
# ### Softmax and its trap

# %%
scores = np.array([1.0, 2.0, 3.0], dtype=np.float32)
with np.errstate(over="ignore", invalid="ignore"):
    naive = np.exp(scores + 1000) / np.exp(scores + 1000).sum()
print("naive, all scores 1,000 higher:", naive)
print("minus the largest first:       ", reference.softmax(scores + 1000).round(3))

# %% [markdown]
# Mathematically nothing has changed. In float32 `exp(1003)` is infinity, and infinity divided by infinity is no number.
#
# ### RoPE: a place becomes an angle
#
# Attention by itself doesn't know order. RoPE turns each pair of numbers of a query or key by an angle that grows with
# the position. The product of two turned vectors depends only on the *difference* of their places. Check that:

# %%
frequencies = reference.rope_frequencies(c.head_dim, c.rope_theta)
q, k = rng.standard_normal((2, 1, 1, c.head_dim)).astype(np.float32)


def product(place_q, place_k):
    """The score of query q at one place and key k at another."""
    turned = [
        reference.rope(x, *reference.rope_table(np.array([place]), frequencies))
        for x, place in ((q, place_q), (k, place_k))
    ]
    return float((turned[0] * turned[1]).sum())


for pair in ((7, 3), (107, 103), (507, 503), (7, 4)):
    print(f"places {pair}: {product(*pair):+.4f}")

# %% [markdown]
# The first three agree: four steps apart, wherever that is. The fourth differs.
#
# ### Where the arithmetic goes
#
# `step_cost` counts the FLOPs of each operation from the shape of the model alone. Short prompts, long prompts:

# %%
from minifer.model.cost import Cost, Work, step_cost

GROUPS = {
    "q, k, v, output": ("qkv", "output"),
    "feed-forward": ("gate_up", "down"),
    "attention": ("attention",),
    "head": ("head",),
}
lengths = [1, 64, 512, 2048, 8192]
shares = {}
for n in lengths:
    costs = step_cost(c, [Work(n, n)])
    whole = sum(costs.values(), Cost()).flops
    shares[n] = {name: 100 * sum(costs[op].flops for op in ops_) / whole for name, ops_ in GROUPS.items()}
    print(f"{n:>5} tokens, {digits(whole / 1e9):>6} GFLOP:", {k: digits(v) for k, v in shares[n].items()})
guesses.reveal("attention at 512, percent of FLOPs", shares[512]["attention"])
guesses.reveal("feed-forward at 512, percent of FLOPs", shares[512]["feed-forward"])

# %%
figure, ax = plt.subplots()
bottom = np.zeros(len(lengths))
looks = (("#DDDDDD", ""), (notebook.SKY, "//"), (notebook.ORANGE, "xx"), ("white", ".."))
for name, (colour, hatch) in zip(GROUPS, looks, strict=True):
    heights = np.array([shares[n][name] for n in lengths])
    ax.bar(range(len(lengths)), heights, 0.6, bottom=bottom, color=colour, hatch=hatch, edgecolor="black", label=name)
    bottom += heights
ax.set_xticks(range(len(lengths)), [f"{n:,}" for n in lengths])
ax.set(xlabel="tokens in the prompt", ylabel="percent of the FLOPs", xlim=(-0.5, 6.5))
ax.legend(loc="center right")
show(
    figure,
    "Figure 3. Short prompts are spent in matrices, very long ones in attention.",
    f"Stacked bars for 1 to 8,192 tokens. Attention has {digits(shares[512]['attention'])} percent of the FLOPs at 512 "
    f"tokens and {digits(shares[8192]['attention'])} percent at 8,192; the head counts only at one token.",
)

# %%
per_token = sum(step_cost(c, [Work(1, 1)])[op].flops for op in ("qkv", "output", "gate_up", "down"))
pair = 4 * c.num_hidden_layers * c.num_attention_heads * c.head_dim  # FLOPs for a token and one it looks at
even = 2 * per_token / pair  # n tokens have n * n / 2 such pairs
guesses.reveal("tokens at which attention equals the linears", even)

# %% [markdown]
# ## Explain
#
# **Two kinds of work.** The linear layers treat every token alike and by itself: work in proportion to the tokens.
# Attention is the only place where tokens meet: work in proportion to the *pairs*, half the square. Everything in this
# course that is about long contexts comes from that half square, and everything about short ones from the matrices.
#
# **The residual stream.** Each block adds its result to the row that came in, `x + block(norm(x))`. So a layer is a
# correction, not a replacement, and you can ask after each one how far the row is from its final direction:

# %%
rows, store = [], ops.new_store(1, len(ids))
batch = make_batch([(ids, 0, (0,))], len(ids))
x, table = ops.embed(weights.embedding, batch.tokens), ops.rope_table(batch.positions)
for index, layer in enumerate(weights.layers):
    x = ops.mlp_block(ops.attention_block(x, layer, table, batch, store, index), layer)
    rows.append(ops.head(x, weights, batch.logit_rows)[0])
ranks = [int((row > row[logits.argmax()]).sum()) + 1 for row in rows]
print("rank of the final choice after each layer:", ranks)

# %%
figure, ax = plt.subplots()
ax.semilogy(range(1, len(ranks) + 1), ranks, marker="o")
ax.set(xlabel="after this layer", ylabel="rank of the final choice", ylim=(0.8, None))
ax.invert_yaxis()
show(
    figure,
    "Figure 4. The answer emerges layer by layer: the rank of the word that wins in the end.",
    f"Line of the rank of the finally chosen token after each of {len(ranks)} layers, from {ranks[0]} after the first "
    "to 1 after the last.",
)

# %% [markdown]
# You have just taken the model apart and asked a half-finished layer for its opinion. That trick has a name, the logit
# lens, and it needed one line.
#
# ## Build
#
# **Task 3.1, `softmax`** (15 minutes), over the last axis; a row of nothing but -inf gives zeros.
#
# <details><summary>Hint 1</summary>Subtract each row's maximum first, with <code>keepdims=True</code>.</details>
# <details><summary>Hint 2</summary>-inf minus -inf is no number: take 0 as the maximum of such a row, and divide by 1
# where the sum is 0.</details>


# %%
def my_softmax(x):
    """Softmax over the last axis of `x [..., S]`."""
    raise NotImplementedError("task 3.1")


check("3.1", my_softmax)

# %% [markdown]
# **Task 3.2, `rms_norm`** (10 minutes): `x / sqrt(mean(x²) + eps) * weight`, over the last axis.
#
# <details><summary>Hint</summary>Nothing is subtracted, and eps stands under the root. Keep float32:
# <code>x.dtype.type(eps)</code>.</details>


# %%
def my_rms_norm(x, weight, eps):
    """Root mean square norm of `x [..., E]` with a gain `weight [E]`."""
    raise NotImplementedError("task 3.2")


check("3.2", my_rms_norm)

# %% [markdown]
# **Task 3.3, `rope`** (30 minutes): rotate each head of `x [T, H, D]` by its token's angles, `cos` and `sin [T, D/2]`.
#
# <details><summary>Hint 1</summary>Pair i is <code>(x[i], x[i + D/2])</code>: the halves, not neighbours.</details>
# <details><summary>Hint 2</summary><code>a * cos - b * sin</code> and <code>b * cos + a * sin</code>, with
# <code>cos[:, None, :]</code> for the axis of the heads.</details>


# %%
def my_rope(x_THD, cos, sin):
    """Pairs (i, i + D/2) of every head, turned by the token's angles."""
    raise NotImplementedError("task 3.3")


check("3.3", my_rope)

# %% [markdown]
# **Task 3.5, `attention`** (60 minutes), the heart of it. `keys` and `values` are lists of pieces, `[K, D, s]` and
# `[K, s, D]`, because a cache may lie in pieces. Query head h reads kv head `h // (H // K)`.
#
# <details><summary>Hint 1</summary>Begin with <code>np.concatenate(keys, axis=2)</code> and a loop over heads.</details>
# <details><summary>Hint 2</summary>The queries are the <em>last</em> T of S tokens:
# <code>causal_mask(T, S, window)</code> knows that.</details>
# <details><summary>Hint 3</summary>Scores are <code>q @ k * D ** -0.5</code>, with <code>-inf</code> where the mask is
# false; then softmax, then times the values.</details>

# %%
from minifer.ops.reference import causal_mask, softmax  # noqa: F401


def my_attention(q_THD, keys, values, window):
    """Causal attention of the last T tokens over all S: `[T, H, D]`."""
    raise NotImplementedError("task 3.5")


check("3.5", my_attention)

# %% [markdown]
# Tasks 3.4 (`swiglu`) and 3.6 (`forward`, where the blocks are put together) wait in the labs: `minifer labs start 3`.
#
# ## Break
#
# Somebody has written `rope` anew, after the paper. Every shape fits, and the model still speaks. Look closely.

# %%
import inspect

from minifer.apps.notebook_bugs import planted

broken_rope = planted("3.3", "36db")


class BrokenRoom(reference.Ops):
    def qkv(self, h, layer, rope_table):
        heads = (h.shape[0], -1, self.config.head_dim)
        q, k, v = (reference.linear(h, w).reshape(heads) for w in (layer.wq, layer.wk, layer.wv))
        return broken_rope(q, *rope_table), broken_rope(k, *rope_table), v


# %%
from minifer.generate import generate

for name, room in (("right", reference.Ops(c, select_device("cpu"))), ("broken", BrokenRoom(c, select_device("cpu")))):
    for text in ("The capital of France is", "One, two, three, four,"):

        def model(ids, room=room):
            return forward(weights, make_batch([(ids, 0, (0,))], len(ids)), room.new_store(1, len(ids)), room)[0]

        written = list(generate(model, tokenizer.encode(text), max_tokens=4))
        print(f"{name:>7}: {text}{tokenizer.decode(written)!r}")

# %% [markdown]
# Not nonsense, only worse, and wrong from the first word on. What could a wrong angle do? Guess, then read the code.

# %%
print(inspect.getsource(broken_rope))

# %% [markdown]
# <details><summary>The bug</summary>
#
# These weights expect pairs <code>(i, i + D/2)</code>. With neighbours paired, both queries and keys are turned, each
# consistently, so nothing crashes and every shape fits; only the frequencies sit on the wrong numbers, and distances are
# read wrongly. It is a classic, since files exist in both orders: llama.cpp's are in the other one and must be permuted
# when they are loaded. It is one of the bugs with which the tests of the labs are tested:
# <code>tests/bugs/phase03/rope_pairs_neighbours.py</code>.
#
# </details>

# %%
check("3.3", broken_rope)

# %% [markdown]
# ## Compare
#
# | | file | look for |
# |---|---|---|
# | **the model** in vLLM | `vllm/model_executor/models/llama.py` | `LlamaDecoderLayer.forward` |
# | llama.cpp | `src/models/llama.cpp` | `build_norm`, `build_attn`, `build_ffn` |
# | Ollama | `model/models/llama/model.go` | `Layer.Forward` |
# | **RoPE** in vLLM | `vllm/model_executor/layers/rotary_embedding/` | `is_neox_style`: halves or neighbours |
# | llama.cpp | `conversion/llama.py` | `permute` |
#
# ## Five questions
#
# <details><summary>1. Where do tokens see each other?</summary>In attention and nowhere else.</details>
#
# <details><summary>2. Why is the maximum subtracted in softmax?</summary>So that <code>exp</code> never gets a positive
# number and cannot overflow; the result is the same.</details>
#
# <details><summary>3. A prompt doubles. Which part of the FLOPs doubles, and which quadruples?</summary>Linear layers
# double, attention quadruples, the head stays: only the last row needs logits.</details>
#
# <details><summary>4. What is shared in grouped-query attention?</summary>Keys and values: several query heads read the
# same kv head.</details>
#
# <details><summary>5. Why is <code>x = block(x)</code> with the addition inside, and not <code>x + block(x)</code>, a
# source of bugs?</summary>If both add, the input counts twice. Shapes fit, and the model still talks.</details>

# %% [markdown]
# ## Three numbers to write down

# %%
print(f"1. FLOPs per token in the linear layers:       {digits(per_token / 1e6)} million")
print(f"2. attention at 512 tokens:                    {digits(shares[512]['attention'])} % of the FLOPs")
print(f"3. attention equals the linears at:            {digits(even)} tokens")
