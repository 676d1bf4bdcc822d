# %% [markdown]
# # 02. Bytes to tokens, and what a token costs
#
# **Why is the same sentence twice as dear in one language as in another?**
#
# Because models don't read letters, and they don't read words. They read tokens, and somebody once decided, by counting,
# which pieces of text are tokens. You will train such a vocabulary in a second, watch it cut text, see what languages
# pay, find the trap of streaming, and write the parts yourself.
#
# About an hour, of which the machine computes less than one minute. Two cores, 1 GB of memory, no GPU.

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
            ("text", "a string"),
            ("cut()", "into words"),
            ("bytes", "1 to 4 per letter"),
            ("merge()", "lowest rank first"),
            ("tokens", "numbers"),
        ],
        back="decode: look up the bytes of each number, and join them",
    ),
    "Figure 1. From text to tokens, and the much shorter way back.",
    "Five boxes in a row: text, cut, bytes, merge, tokens. An arrow leads from the last back to the first, labelled "
    "decode.",
)

# %% [markdown]
# ## See
#
# The tokenizer of a real model at work.

# %%
from minifer.model.load import load_model
from minifer.tokenizer import Tokenizer

models = notebook.choose_models()
loaded = load_model(models.text)
tokenizer = Tokenizer.from_pretrained(loaded.tokenizer_path)
print(models.note or f"{models.text}: {tokenizer.vocab_size:,} tokens")
for text in ("The cat sat.", "the CAT sat", "antidisestablishmentarianism", "12345678", "Grüße, 👍!"):
    pieces = [data.decode(errors="replace") for _, data in tokenizer.pieces(text)]
    print(f"{text!r:<32} {len(pieces):>2}: {'|'.join(pieces)}")

# %% [markdown]
# Blanks belong to the word that follows. Capitals make another token. And the pieces of the last line hold question
# marks: a character of several bytes may be cut in the middle. Keep that in mind, it will bite below.
#
# ## Predict
#
# Put a number in place of each `None`.
#
# 1. A sentence in Greek takes how many times as many tokens as the same one in English?
# 2. A text twice as long: naive encoding, which looks for the best pair again and again, takes how many times as long?
# 3. How many tokens is one thumbs-up, 👍?

# %%
guesses = notebook.Guesses()
guesses.predict("Greek against English, times the tokens", None)
guesses.predict("naive, twice the length, times the time", None)
guesses.predict("tokens of a thumbs-up", None)

# %% [markdown]
# ## Run
#
# ### Training is counting
#
# Take the pair of neighbours that occurs most often, give it a number, write it in everywhere, begin again. Watch:

# %%
from minifer.tokenizer import bpe

CORPUS = "low lower lowest new newer newest wide wider widest " * 20
merges = bpe.train(CORPUS, 256 + 12)
tokens = bpe.vocabulary(merges)
for pair, new in merges.items():
    left, right = (tokens[half].decode() for half in pair)
    print(f"{new}: {left!r} + {right!r} -> {tokens[new].decode()!r}")

# %% [markdown]
# Nobody explained words to it: these are simply the pieces that came up often, some of them words and some of them
# ruins. Encoding replays the list in the same order on new text, here on a word that it has never seen:

# %%
for stage in bpe.merge_stages(list(b"slowest"), merges.get, range(256 + len(merges))):
    print("|".join(tokens[i].decode() for i in stage))

# %% [markdown]
# ### What languages pay
#
# The same sentence, from the same declaration, in seven languages.

# %%
SENTENCE = {
    "English": "All human beings are born free and equal in dignity and rights.",
    "German": "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "Spanish": "Todos los seres humanos nacen libres e iguales en dignidad y derechos.",
    "Greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "Russian": "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "Japanese": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "Hindi": "सभी मनुष्य जन्म से स्वतंत्र हैं तथा गरिमा और अधिकारों में समान हैं।",
}
counts = {language: len(tokenizer.encode(text)) for language, text in SENTENCE.items()}
for language, text in SENTENCE.items():
    size = len(text.encode())
    print(f"{language:<9} {len(text):>3} characters, {size:>3} bytes, {counts[language]:>3} tokens,", end=" ")
    print(f"{digits(counts[language] / size)} tokens per byte")

# %%
figure, ax = plt.subplots()
at = np.arange(len(counts))
ax.barh(at, list(counts.values()), color=notebook.SKY, edgecolor="black")
ax.set_yticks(at, list(counts))
ax.invert_yaxis()
ax.set(xlabel="tokens for the same sentence")
show(
    figure,
    f"Figure 2. One sentence, seven languages, one vocabulary ({models.text}).",
    f"Bars of token counts: English {counts['English']}, Greek {counts['Greek']}, Hindi {counts['Hindi']}, others "
    "between or near.",
)
guesses.reveal("Greek against English, times the tokens", counts["Greek"] / counts["English"])

# %% [markdown]
# The vocabulary was counted on text that was mostly English, so English got the long pieces. Others pay by the piece:
# more tokens to wait for, more to keep, less room in the context. What *one* costs, the model's shape tells:

# %%
from minifer.model.cost import num_parameters

c = loaded.config
flops, kept = 2 * num_parameters(c), c.kv_bytes_per_token
print(f"a token costs about {digits(flops / 1e6)} million FLOPs to read and {kept:,} bytes of KV cache")
for language in ("English", "Greek", "Hindi"):
    n = counts[language]
    print(f"{language:<8} {digits(n * flops / 1e9):>5} GFLOP, {digits(n * kept / 1e6):>5} MB for the sentence")

# %% [markdown]
# ### Naive against indexed
#
# `merge_stages` is the definition: look at all pairs, merge the best, look again. `merge` gives the same result with a
# heap. A run of letters without a blank is the worst case, and anybody can send one to a server.

# %%
ranks = bpe.train("".join(rng.choice(list("abcd"), 3000)), 256 + 300, pattern=None)
made = range(256 + len(ranks))


def both_s(n):
    """Seconds of the definition and of the heap for n letters; both must agree."""
    letters = list("".join(rng.choice(list("abcd"), n)).encode())
    start = time.perf_counter()
    *_, naive = bpe.merge_stages(letters, ranks.get, made)
    middle = time.perf_counter()
    indexed = bpe.merge(letters, ranks.get, made)
    assert naive == indexed
    return middle - start, time.perf_counter() - middle


sizes = [200, 400, 800, 1600]
times = np.array([both_s(n) for n in sizes])
for n, (naive_s, heap_s) in zip(sizes, times, strict=True):
    print(f"{n:>5} letters: naive {digits(1e3 * naive_s):>6} ms, heap {digits(1e3 * heap_s):>5} ms")
guesses.reveal("naive, twice the length, times the time", times[-1, 0] / times[-2, 0])

# %%
figure, ax = plt.subplots()
ax.loglog(sizes, 1e3 * times[:, 0], marker="o", label="look at all pairs, again and again")
ax.loglog(sizes, 1e3 * times[:, 1], marker="s", label="a heap of pairs")
ax.set_xticks(sizes, [f"{n:,}" for n in sizes])
ax.minorticks_off()
ax.set(xlabel="letters without a blank", ylabel="milliseconds")
ax.legend()
show(
    figure,
    "Figure 3. The definition takes quadratic time, the heap almost linear time.",
    f"Log-log lines over 200 to 1,600 letters: the naive way ends at {digits(1e3 * times[-1, 0])} milliseconds, the "
    f"heap at {digits(1e3 * times[-1, 1])}.",
)

# %% [markdown]
# ### Streaming, and the character that came in parts

# %%
from minifer.tokenizer.stream import StreamDecoder

thumbs = tokenizer.encode("👍")
guesses.reveal("tokens of a thumbs-up", len(thumbs))
ids = tokenizer.encode("ok 👍 done")
decoder = StreamDecoder(tokenizer)
print("each by itself:", [tokenizer.decode([token]) for token in ids])
print("with a memory: ", [decoder.push(token) for token in ids])

# %% [markdown]
# ## Explain
#
# **Bytes make it complete.** The first 256 tokens are the single bytes, so there is no text that cannot be written. What
# a vocabulary adds is only brevity, and brevity goes to what was frequent in training.
#
# **The order of merges is the grammar.** Encoding must replay merges by rank, not take the longest piece that fits. Two
# programs with the same list and another order cut differently, and the model was trained on one of the two.
#
# **Decoding is only looking up**, but bytes become text only when a character is complete. A streaming server needs a
# memory of at most three bytes.
#
# ## Build
#
# **Task 2.1, `vocabulary`** (10 minutes). The bytes of every token, by id.
#
# <details><summary>Hint</summary>Ids 0 to 255 are <code>bytes([i])</code>; a merge's bytes are its two halves', which are
# in the list already.</details>


# %%
def my_vocabulary(merges):
    """my_vocabulary({(97, 98): 256, (256, 99): 257})[256:] is [b"ab", b"abc"]."""
    raise NotImplementedError("task 2.1")


check("2.1", my_vocabulary)

# %% [markdown]
# **Task 2.2, `merge`** (45 minutes). Merge neighbours, lowest rank first, leftmost of equals, until none can.
#
# <details><summary>Hint 1</summary>Write the quadratic version first: best rank over all neighbours, merge it, look
# again.</details>
# <details><summary>Hint 2</summary>For speed: <code>(rank, place)</code> in a heap, links to the neighbours, and skip
# entries whose pair has changed.</details>


# %%
def my_merge(tokens, rank_of, made):
    """`rank_of(pair)` is None for a pair that cannot merge; `made[rank]` is the token that takes its place."""
    raise NotImplementedError("task 2.2")


check("2.2", my_merge)

# %% [markdown]
# **Task 2.3, `train`** (30 minutes). `PairIndex` does the counting.
#
# <details><summary>Hint 1</summary><code>index = PairIndex(count_words(texts, pattern))</code>;
# <code>index.most_frequent()</code> is the best pair or None; <code>index.merge(pair, new)</code>.</details>
# <details><summary>Hint 2</summary>Refuse a vocabulary below 256 with <code>TokenizerError</code>; call
# <code>progress(done, vocab_size - 256)</code> after each merge, if there is one.</details>

# %%
from minifer.errors import TokenizerError  # noqa: F401
from minifer.tokenizer.bpe import PairIndex, count_words  # noqa: F401
from minifer.tokenizer.pretokenize import GPT2


def my_train(texts, vocab_size, pattern=GPT2, progress=None):
    """Learn merges until there are `vocab_size` tokens, the 256 bytes included."""
    raise NotImplementedError("task 2.3")


check("2.3", my_train)

# %% [markdown]
# **Task 2.4, `StreamDecoder.push`** (20 minutes). The text that this token completes, often "".
#
# <details><summary>Hint</summary><code>self.tokenizer.token_bytes(token_id)</code>, then
# <code>self._utf8.decode(data)</code>, which remembers unfinished bytes. A special token gives "" when
# <code>self.skip_special</code> is set; with <code>self._at_start</code> one leading blank is dropped, once.</details>


# %%
def my_push(self, token_id):
    """The text that this token completes."""
    raise NotImplementedError("task 2.4")


check("2.4", my_push)

# %% [markdown]
# ## Break
#
# This server streams. Its authors speak English, and every test of theirs is green.

# %%
import inspect

from minifer.apps.notebook_bugs import planted

broken_push = planted("2.4", "d5b7")


class Broken(StreamDecoder):
    push = broken_push


for text in ("Hello there", "Grüße", "ok 👍", "すべて"):
    decoder = Broken(tokenizer)
    print(f"{text!r:>14} -> {''.join(decoder.push(token) for token in tokenizer.encode(text))!r}")

# %% [markdown]
# Which texts are spared, and what do they have in common? Guess, then read the code.

# %%
print(inspect.getsource(broken_push))

# %% [markdown]
# <details><summary>The bug</summary>
#
# Each token is decoded by itself. Where a character's bytes are spread over two tokens, neither half is valid, and each
# becomes a question mark in a box. English never shows it: its letters are one byte long. The decoder needs a memory.
# It is one of the bugs with which the tests of the labs are tested:
# <code>tests/bugs/phase02/push_decodes_each_token_alone.py</code>.
#
# </details>

# %%
check("2.4", broken_push)

# %% [markdown]
# ## Compare
#
# | | file | look for |
# |---|---|---|
# | **merging** in llama.cpp | `src/llama-vocab.cpp` | `llm_tokenizer_bpe_session`: a queue of pairs, as here |
# | Ollama | `tokenizer/bytepairencoding.go` | `Encode` |
# | vLLM | | the package `tokenizers`, in Rust |
# | **streaming** in vLLM | `vllm/v1/engine/detokenizer.py` | `IncrementalDetokenizer` |
# | llama.cpp | `tools/server/server-context.cpp` | `validate_utf8` |
# | Ollama | `runner/common/stop.go` | `IncompleteUnicode` |

# %% [markdown]
# ## Five questions
#
# <details><summary>1. Which text cannot be encoded?</summary>None: every byte is a token.</details>
#
# <details><summary>2. Why are numbers a problem?</summary>Cut by frequency, 1234 and 1235 may fall into different pieces.
# Some vocabularies, like this one, cut digits singly.</details>
#
# <details><summary>3. What does a larger vocabulary cost?</summary>A row of the embedding and of the head for each token:
# shorter texts, larger matrices.</details>
#
# <details><summary>4. Why must a server not use the naive loop?</summary>One request of letters without blanks would hold
# it for minutes.</details>
#
# <details><summary>5. Two tokenizers hold the same tokens. Do they cut alike?</summary>Not if the order of their merges
# differs, or the rule that cuts words.</details>

# %% [markdown]
# ## Three numbers to write down

# %%
print(f"1. Greek against English:           {digits(counts['Greek'] / counts['English'])} times the tokens")
print(f"2. naive, twice the length:         {digits(times[-1, 0] / times[-2, 0])} times the time")
print(f"3. a token of KV cache:             {kept:,} bytes")
