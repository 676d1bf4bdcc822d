# %% [markdown]
# # 07. Continuous batching: latency and throughput
#
# **Many people ask at once, and there is one model. Who waits for whom, and what does each of them get to feel?**
#
# You will drive a scheduler by hand, one step at a time; draw the same eight answers under two schedulers; read
# latencies out of a log; and load a machine until it breaks, on a virtual clock, in a second. Then you write the loop
# at the scheduler's heart, and find a bug that no test of a single request could ever show.
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
import json
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
            ("waiting", "in order of arrival"),
            ("step()", "who runs next?"),
            ("forward()", "one pass for all of them"),
            ("commit()", "who is done?"),
            ("running", "who is in the batch"),
        ],
        back="a seat is free the moment an answer ends: decide anew before every step",
    ),
    "Figure 1. Continuous batching is one decision, taken again before every single step.",
    "Five boxes in a row: waiting, step, forward, commit, running. An arrow leads from the last back to the first, "
    "labelled: a seat is free the moment an answer ends, decide anew before every step.",
)

# %% [markdown]
# ## See
#
# First the finished thing: one model, four people who ask at the same moment, and nobody waits for the others to
# finish. Their words are made side by side, one for each of them in every step.

# %%
from minifer import LLM, SamplingParams
from minifer.apps.view import trace_figures, trace_model
from minifer.engine import Engine
from minifer.executor import ModelExecutor
from minifer.scheduler.continuous import ContinuousScheduler
from minifer.scheduler.request import Request
from minifer.scheduler.static import StaticScheduler
from minifer.trace import TraceWriter

models = notebook.choose_models()
options = {"num_blocks": 96, "max_model_len": 768, "enable_prefix_caching": False}
llm = LLM(models.speed, **options)
text_llm = llm if models.text == models.speed else LLM(models.text, **options)
print(models.note or f"{models.text}: a pool of {llm.limits.num_blocks} blocks of {llm.limits.block_size} tokens")

# %%
QUESTIONS = ["Name a colour.", "Tell a story.", "What is two plus two?", "Why is the sky blue?"]
chats = [text_llm.encode_chat([{"role": "user", "content": question}]) for question in QUESTIONS]
for question, answer in zip(
    QUESTIONS, text_llm.generate(chats, SamplingParams(temperature=0, max_tokens=14)), strict=True
):
    print(f"{question:<24}{answer.text!r}")

# %% [markdown]
# Now eight, in a batch of only four seats. The engine writes a **trace** while it works, one line of JSON per step, and
# everything that this notebook draws of it is read from such a log.

# %%
LENGTHS = [7, 40, 12, 16, 36, 5, 9, 14]  # tokens of each answer, fixed so that both schedulers do the same work


def serve(scheduler_class, asked, **limits):
    """Serve `asked`: (prompt ids, answer length, steps to wait before it comes). The log of the run, as text."""
    limits = replace(llm.limits, **limits)
    executor = ModelExecutor(llm.weights, llm.store, llm.ops, llm.device)
    log, coming, steps = io.StringIO(), list(enumerate(asked, start=1)), 0
    with TraceWriter(log, asdict(limits), {"model": llm.name}) as trace:
        engine = Engine(scheduler_class(limits), executor, trace=trace)
        while coming or engine.has_work:
            now = engine.clock.now()
            while coming and coming[0][1][2] <= steps:
                number, (ids, length, _) = coming.pop(0)
                params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
                engine.add(Request(f"r{number}", tuple(ids), params, now))
            engine.step()
            steps += 1
    return log.getvalue()


# %%
eight = [(text_llm.encode(question), length, 0) for question, length in zip(QUESTIONS * 2, LENGTHS, strict=True)]
serve(ContinuousScheduler, eight[:1])  # once for nothing: the first steps also bring the weights into memory
logs = {"continuous": serve(ContinuousScheduler, eight, max_num_seqs=4)}

# %%
traces = {"continuous": trace_model.load(io.StringIO(logs["continuous"]))}
show(
    trace_figures.requests_figure(traces["continuous"]),
    "Figure 2. Eight requests that came at the same moment, in a batch of four seats.",
    "A row for each of eight requests over time. The first four start at once; each of the others waits until one of "
    "them has ended and then starts in the very next step. Ticks mark the tokens.",
)

# %% [markdown]
# Look at `r5`: it has no batch to wait for. The shortest of the first four ends, and `r5` sits down in the step after.
#
# ## Predict
#
# Three guesses, before anything is measured. Put a number in place of each `None`.
#
# 1. Static batching takes four requests and lets nobody in until *all* of them are done. With the eight answers above
#    (7, 40, 12, 16, then 36, 5, 9, 14 tokens), what share of its seats, in percent over all steps, stands empty?
# 2. A step that makes a token for eight answers takes how many times as long as a step for one?
# 3. A server is 90 % loaded: nine tenths of the requests per second that it can just manage. The median TTFT is how
#    many times that of an idle server?

# %%
guesses = notebook.Guesses()
guesses.predict("empty seats of static batching, percent", None)
guesses.predict("a step for eight against one, times", None)
guesses.predict("TTFT at 90 % load against idle, times", None)

# %% [markdown]
# ## Run
#
# ### 1. A scheduler by hand
#
# A scheduler needs no model. Here it works for a stand-in that makes up tokens (and notices every mistake in the
# bookkeeping), so a step costs nothing and can be read like a sentence. Four seats, ten blocks of four tokens, at most
# twelve tokens per step.

# %%
from minifer.apps.stepper import Stepper, load_workload
from minifer.limits import EngineConfig

limits, arrivals = load_workload("demo")
stepper = Stepper(arrivals, EngineConfig(**limits))
for a in arrivals:
    print(f"{a.id} comes after step {a.arrival} with {len(a.prompt)} tokens, wants {a.max_tokens}", "x 2" * (a.n > 1))
print()
for number in (1, 2, 3, 4):
    print(stepper.frame(number).sentence)

# %% [markdown]
# Read step 2 slowly; the whole idea is in it. `ann` is in decode and gets her **one** token first, so that nobody who
# comes later can make her wait. The other eleven of the twelve go to the beginning of `bob`'s prompt: a **chunk**. In
# step 4 his last chunk runs, and both get a token out of the same pass through the model. A batch is a mixture.
#
# A plan is not a sentence but a value. This is what the executor gets, one `ScheduledSeq` per request:

# %%
scheduler = ContinuousScheduler(EngineConfig(**limits))
scheduler.add(Request("ann", arrivals[0].prompt, SamplingParams(max_tokens=9)))
plan = scheduler.step(now=0.0)
for name, value in plan.seqs[0]._asdict().items():
    print(f"{name:<12} {value}")

# %% [markdown]
# `slots` says where the keys and values of these tokens go (notebook 08), and `samples` is true because the prompt's
# last token is among them: only then do the logits mean "the next token". In step 2, `bob`'s chunk samples nothing.
#
# Now let it run on, and watch for two words: *preempted* and *has to wait*. Why does `bob` wait in step 6, although six
# blocks are free? (They hold *his own* text, still findable. He will not be given blocks that he wants to find.)

# %%
for number in (5, 6, 9, 10, 11, 12, 13, 20):
    print(stepper.frame(number).sentence)

# %%
last = stepper.frame(10_000)
print(f"all done after {last.step} steps, with {last.preemptions} preemptions; "
      f"{last.tokens_from_cache} tokens were found and not computed")  # fmt: skip

# %% [markdown]
# Nobody crashed when the ten blocks were full. The newest request gave its blocks back and waited, and later it
# computed its prompt *and the answer so far* again, in silence; its reader saw a pause, never a wrong word. (Want to
# walk through it with the arrow keys, forwards and back? `minifer step` in a terminal.)
#
# ### 2. The same eight answers, twice
#
# Back to the real model. Static batching is what a plain loop around a model does: fill the seats, run until the
# longest answer is done, fill them again.

# %%
logs["static"] = serve(StaticScheduler, eight, max_num_seqs=4)
traces["static"] = trace_model.load(io.StringIO(logs["static"]))
both = {name: trace_figures.trace_data.timeline(traces[name]) for name in ("static", "continuous")}
show(
    trace_figures.timeline_figure([traces[name] for name in both], list(both)),
    "Figure 3. The same eight answers in four seats, static above and continuous below, on one clock.",
    f"Seats over time. Static batching: {both['static']['steps']} steps, {both['static']['empty_seat_steps']} empty "
    f"seat-steps, hatched. Continuous batching: {both['continuous']['steps']} steps and hardly any empty seat.",
)

# %%
static = both["static"]
seats_paid = static["seat_steps"] + static["empty_seat_steps"]
guesses.reveal("empty seats of static batching, percent", 100 * static["empty_seat_steps"] / seats_paid)
for name, data in both.items():
    print(f"{name:<11} {data['steps']:>3} steps, {digits(data['ms'])} ms")
fewer = static["steps"] / both["continuous"]["steps"]
faster = static["ms"] / both["continuous"]["ms"]
print(f"{digits(fewer)} times fewer steps, but only {digits(faster)} times faster")

# %% [markdown]
# The steps follow from arithmetic alone, and they are the same on every machine. The milliseconds do not, and they gain
# less. Why? Measure what a step costs, as a function of how many answers are in it.
#
# ### 3. What a step costs


# %%
def steps_of(log):
    """(sequences in the step, tokens in the step, seconds) of every step in a log."""
    records = [json.loads(line) for line in log.splitlines()]
    steps = [r for r in records if r["kind"] == "step"]
    return [(len(r["seqs"]), sum(seq[3] for seq in r["seqs"]), r["end"] - r["start"]) for r in steps]


batches, decode_ms = [1, 2, 4, 6, 8], []
for batch in batches:
    crowd = [(rng.integers(0, llm.vocab_size, 8).tolist(), 9, 0)] * batch
    taken = [seconds for _, tokens, seconds in steps_of(serve(ContinuousScheduler, crowd)) if tokens == batch]
    decode_ms.append(1e3 * float(np.median(taken)))
    print(f"batch of {batch}: {digits(decode_ms[-1])} ms a step, {digits(decode_ms[-1] / batch)} ms a token")
guesses.reveal("a step for eight against one, times", decode_ms[-1] / decode_ms[0])

# %%
each_ms, once_ms = np.polyfit(batches, decode_ms, 1)
figure, (left, right) = plt.subplots(1, 2)
line = once_ms + each_ms * np.array([0, 8])
left.plot(batches, decode_ms, "o", color=notebook.BLUE, label="measured")
left.plot([0, 8], line, "--", color=notebook.VERMILLION, label=f"{digits(once_ms)} ms + {digits(each_ms)} ms each")
left.set(xlabel="answers in the batch", ylabel="milliseconds for a step", ylim=(0, None))
left.legend(fontsize=9)
right.plot(batches, [1e3 * b / ms for b, ms in zip(batches, decode_ms, strict=True)], "s-", color=notebook.GREEN)
right.set(xlabel="answers in the batch", ylabel="tokens per second, all together", ylim=(0, None))
show(
    figure,
    f"Figure 4. A step pays once for reading the weights and a little for each answer in it ({models.speed}).",
    f"Left: time per step rises from {digits(decode_ms[0])} ms for one answer to {digits(decode_ms[-1])} ms for eight, "
    f"beside a straight line. Right: tokens per second rise from {digits(1e3 / decode_ms[0])} to "
    f"{digits(8e3 / decode_ms[-1])}.",
)

# %% [markdown]
# That is the whole trade in one picture. **To the right, the machine makes more tokens per second; on the left, each
# person waits longer for theirs.** A step with *b* answers takes about *a* + *c b*. Empty seats cost
# nothing of the second part. Static batching only pays *a* more often, and so the gain in time is smaller than the gain
# in steps. On a GPU, *a* (reading the weights) is nearly everything, and there the two come close to each other.
#
# How large is that gain, for answers of other lengths? A static batch runs as long as its *longest* answer; what is
# useful is the *mean*. So the gain is E[longest of B] / E[length]: nothing if all are equally long, and for
# exponentially distributed lengths exactly 1 + 1/2 + 1/3 + ... + 1/B.

# %%
from minifer.apps.bench_batching_law import draw_lengths, law, slot_steps

lengths = draw_lengths("exponential", 400, 20, seed=0)
sizes = [1, 2, 4, 8, 16]
gains = [slot_steps("static", lengths, b).slot_steps / slot_steps("continuous", lengths, b).slot_steps for b in sizes]
figure, ax = plt.subplots(figsize=(8, 3.2))
ax.plot(sizes, [law("exponential", b) for b in sizes], "--", color=notebook.VERMILLION, label="1 + 1/2 + ... + 1/B")
ax.plot(sizes, gains, "o", color=notebook.BLUE, label="counted, 400 answers")
ax.set(xlabel="seats B", ylabel="static / continuous", xscale="log", xticks=sizes, xticklabels=sizes)
ax.legend()
show(
    figure,
    "Figure 5. How many times as many slot-steps static batching pays for, by law and by counting.",
    f"The gain of continuous over static batching rises from 1 with one seat to {digits(gains[3])} with 8 and "
    f"{digits(gains[-1])} with 16 seats, close to the dashed line of the harmonic numbers.",
)

# %% [markdown]
# ### 4. Latency, out of a log
#
# A server's dashboard knows nothing but a log with time stamps. So take the log, and only the log. Every step says when
# it ended and which tokens came out of it. Three numbers per request are enough to say what its reader felt.


# %%
def latencies(log):
    """For each request: when it came, and the times at which its tokens came out."""
    came, stamps = {}, {}
    for line in log.splitlines():
        record = json.loads(line)
        if record["kind"] == "request":
            came[record["id"]] = record["arrival"]
        if record["kind"] == "step":
            for request_id, *_ in record["tokens"]:
                stamps.setdefault(request_id, []).append(record["end"])
    return came, stamps


for name, log in logs.items():
    came, stamps = latencies(log)
    ttft = [1e3 * (stamps[r][0] - came[r]) for r in came]
    itl = [1e3 * gap for r in came for gap in np.diff(stamps[r])]
    print(f"{name:<11} TTFT median {digits(np.median(ttft)):>5} ms, worst {digits(max(ttft)):>5} ms; ", end="")
    print(f"ITL median {digits(np.median(itl))} ms, worst {digits(max(itl))} ms")

# %% [markdown]
# **TTFT** contains the queue, and so it is where a scheduler shows. **ITL** differs far less, and not even in the same
# direction: fuller batches make longer steps. Remember that; the next picture is the same sentence with a load axis.
#
# ### 5. Until it breaks
#
# How do TTFT and ITL change with load? An honest measurement takes hours. But all decisions are taken by code that we
# have, and what a step costs we have just measured. So keep the scheduler and replace only the *model*, by a formula
# that says how long the step would have taken. Two more step times are needed, with a prompt in them.

# %%
from minifer.apps.simulate.steptime import Curve, FittedTime

prefill_ms = []
for length in (64, 256):
    alone = serve(ContinuousScheduler, [(rng.integers(0, llm.vocab_size, length).tolist(), 1, 0)] * 2, max_num_seqs=1)
    prefill_ms.append(1e3 * min(seconds for _, tokens, seconds in steps_of(alone) if tokens == length))
    print(f"a prompt of {length} tokens: {digits(prefill_ms[-1])} ms")
curve = Curve((*batches, 64, 256), tuple(ms / 1e3 for ms in decode_ms + prefill_ms))
step_time = FittedTime(curve, curve)

# %%
from minifer.apps.simulate.fleet import Fleet, Replica
from minifer.apps.workloads import Arrival, arrival_times

COUNT, PROMPT = 600, tuple(range(64))
answers = draw_lengths("exponential", COUNT, 32, seed=1)
config = EngineConfig(num_blocks=512, max_num_seqs=8, max_num_batched_tokens=256, enable_prefix_caching=False)


def simulate(rate, scheduler_class=ContinuousScheduler):
    """Serve COUNT requests at `rate` per second (Poisson arrivals) on a virtual clock; the sums of the run."""
    replica = Replica(config, step_time, window=10**6, leaps=False)
    replica.engine.scheduler = scheduler_class(config)
    times = arrival_times(COUNT, rate, seed=3)
    crowd = [Arrival(i, at, PROMPT, answers[i]) for i, at in enumerate(times)]
    tally = Fleet(lambda _: replica, 1).run(crowd)
    return tally.summary(percents=(50, 95))


capacity = {c: simulate(float("inf"), c)["request_throughput"] for c in (StaticScheduler, ContinuousScheduler)}
for scheduler_class, rate in capacity.items():
    print(f"{scheduler_class.__name__:<20} at most {digits(rate)} requests/s")

# %%
best = capacity[ContinuousScheduler]
loads = [0.05, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.05]
found = {c: [simulate(load * best, c) for load in loads] for c in capacity}
served = sum(COUNT for _ in loads) * len(found)
continuous = found[ContinuousScheduler]
times_idle = continuous[loads.index(0.9)]["p50_ttft_ms"] / continuous[0]["p50_ttft_ms"]
guesses.reveal("TTFT at 90 % load against idle, times", times_idle)
print(f"{served:,} requests were served on the virtual clock")

# %%
figure, axes = plt.subplots(1, 2)
percent = [100 * load for load in loads]
for scheduler_class, name, dash in ((StaticScheduler, "static", "--"), (ContinuousScheduler, "continuous", "-")):
    color = notebook.VERMILLION if name == "static" else notebook.BLUE
    for ax, metric in zip(axes, ("ttft", "itl"), strict=True):
        rows = found[scheduler_class]
        ax.plot(percent, [r[f"p50_{metric}_ms"] for r in rows], dash, color=color, marker="o", markersize=4,
                label=f"{name}, median")  # fmt: skip
axes[0].plot(percent, [r["p95_ttft_ms"] for r in continuous], ":", color=notebook.BLUE, label="continuous, p95")
axes[0].set(yscale="log", ylabel="TTFT, milliseconds", xlabel="load, % of the most it can serve")
axes[1].set(ylim=(0, None), ylabel="ITL, milliseconds", xlabel="load, % of the most it can serve")
axes[0].legend(fontsize=8)
show(
    figure,
    f"Figure 6. TTFT and ITL against load, simulated with the step times measured above ({models.speed}).",
    f"Left, logarithmic: median TTFT of continuous batching rises from {digits(continuous[0]['p50_ttft_ms'])} ms when "
    f"idle to {digits(continuous[-1]['p50_ttft_ms'])} ms beyond full load; static rises far earlier. Right: "
    f"ITL rises from {digits(continuous[0]['p50_itl_ms'])} to {digits(continuous[-1]['p50_itl_ms'])} ms and stays.",
)

# %% [markdown]
# ### 6. One long prompt
#
# One thing the averages hide. Three people are reading their answers when somebody pastes a document of 512 tokens.
# In one step, or in chunks?


# %%
def worst_gap(budget):
    """Three answers under way, a long prompt in steps of at most `budget` tokens: gaps of r1, TTFT of the document."""
    streams = [(rng.integers(0, llm.vocab_size, 8).tolist(), 30, 0)] * 3
    document = (rng.integers(0, llm.vocab_size, 512).tolist(), 2, 8)
    came, stamps = latencies(serve(ContinuousScheduler, [*streams, document], max_num_batched_tokens=budget))
    return 1e3 * np.diff(stamps["r1"]), 1e3 * (stamps["r4"][0] - came["r4"])


figure, ax = plt.subplots(figsize=(8, 3.2))
chunked = {}
for budget, color, dash in ((768, notebook.VERMILLION, "--"), (64, notebook.BLUE, "-")):
    gaps, document_ms = chunked[budget] = worst_gap(budget)
    ax.plot(range(1, len(gaps) + 1), gaps, dash, color=color, marker="o", markersize=4, label=f"at most {budget}")
    print(f"steps of at most {budget:>3} tokens: worst ITL {digits(max(gaps))} ms, the document's TTFT ", end="")
    print(f"{digits(document_ms)} ms")
ax.set(xlabel="token of a running answer", ylabel="milliseconds since the one before", ylim=(0, None))
ax.legend(title="tokens in a step")
show(
    figure,
    "Figure 7. What a reader feels when somebody else pastes a long document.",
    f"Gaps between the tokens of one answer. In one step the document costs everybody a gap of "
    f"{digits(max(chunked[768][0]))} ms; in chunks of 64 no gap is longer than {digits(max(chunked[64][0]))} ms.",
)

# %% [markdown]
# ## Explain
#
# **One decision per step, three prices.** A step has a fixed price *a* (the weights are read once, for everybody), a
# price *c* for each answer in it, and a price for prompt tokens. Everything you saw follows from that.
#
# * *Seats.* An empty seat saves only *c* and wastes its share of *a*. Filling it at once is pure gain, so the decision
#   must be taken before every step: that is continuous batching, and why the static curve in figure 6 leaves first.
# * *TTFT is where load shows.* Beyond the knee, work arrives faster than it is done; the queue has no end, and TTFT is
#   mostly queue. It is not a property of the model but of the load.
# * *ITL is capped by design.* It is the duration of a step, and no step holds more than `max_num_seqs` answers and
#   `max_num_batched_tokens` tokens. These two limits are a promise to whoever is reading.
# * *Chunks move pain around.* The document of figure 7 took longer in chunks, since each chunk reads the weights again;
#   in exchange nobody's stream stood still. The smaller the budget, the smoother the streams, the later the document.

# %%
calm = continuous[loads.index(0.7)]
in_system = calm["request_throughput"] * calm["mean_e2el_ms"] / 1e3
print(f"at 70 % load: {digits(calm['request_throughput'])} requests/s x {digits(calm['mean_e2el_ms'] / 1e3)} s each")
print(
    f"so {digits(in_system)} requests are in the house at any time, on average; there are {config.max_num_seqs} seats"
)

# %% [markdown]
# That product is **Little's law**: how many are inside = how fast they come x how long they stay. It holds for every
# queue, whatever its policy, and it turns the two numbers on a dashboard into a third that you can check.
#
# ## Build
#
# **Task 7.1, `from_stamps`** (20 minutes). Latency from time stamps: what every dashboard of every engine computes, and
# what many compute a little differently. `RequestMetrics` is a data class with the fields `ttft`, `itl`, `tpot`, `e2e`
# and `output_tokens`; what is undefined stays None. TPOT is the time after the first token, per further token.
#
# <details><summary>Hint 1</summary>TTFT is the first stamp minus <code>sent</code>; E2E the last stamp minus
# <code>sent</code>.</details>
# <details><summary>Hint 2</summary>Three posts, two gaps: k stamps have k - 1 of them. The wait for the first token is
# not one.</details>
# <details><summary>Hint 3</summary>TPOT divides by <code>output_tokens - 1</code>, which is not always the number of
# gaps, and is None below two tokens. Without stamps everything is None.</details>

# %%
from minifer.metrics import RequestMetrics  # noqa: F401, for you to use


def my_from_stamps(sent, stamps, output_tokens):
    """The metrics of a request that was sent at `sent` and gave something at each of `stamps`, in seconds.

    my_from_stamps(0.0, [0.5, 0.75, 1.5], 3) has ttft 0.5, itl (0.25, 0.75), tpot 0.5, e2e 1.5
    """
    raise NotImplementedError("task 7.1")


check("7.1", my_from_stamps)

# %% [markdown]
# **Task 7.2, `percentile`** (15 minutes). The value below which so many percent of the values lie, interpolated between
# its two neighbours; None if there are no values. Tools disagree even here, so the tests ask for exactly this one.
#
# <details><summary>Hint 1</summary>Sort a copy: the list belongs to the caller.</details>
# <details><summary>Hint 2</summary>The place is <code>(n - 1) * percent / 100</code>, and usually falls between two
# values.</details>
# <details><summary>Hint 3</summary>below + (above - below) * fraction, and mind the last index.</details>


# %%
def my_percentile(values, percent):
    """The `percent`-th percentile of `values`, linearly interpolated; None if there is none.

    my_percentile([10, 20, 30, 40, 1000], 87.5) is 520.0
    """
    raise NotImplementedError("task 7.2")


check("7.2", my_percentile)

# %% [markdown]
# **Task 7.3, `_run`** (25 minutes). The heart of the scheduler: spend the budget. `requests` come in order; each gets
# `min(request.remaining, self._draft.budget)` tokens. `self._schedule(request, count)` puts them into the plan and
# takes them off the budget. Before that, `self._make_room(request)` sees to the blocks, and this is where it becomes
# interesting: making room for one may throw *another* out of the batch, or the request itself.
#
# <details><summary>Hint 1</summary>Who gets 0 tokens, because the budget is spent, is passed over.</details>
# <details><summary>Hint 2</summary>A request further down the list may have been preempted for somebody before it:
# look at <code>request.state is State.RUNNING</code> when its turn comes, not before the loop.</details>
# <details><summary>Hint 3</summary><code>_make_room</code> returns False if the request itself had to go. Then there
# is nothing to schedule. And don't call it for who gets nothing anyway: it may cost somebody his place.</details>

# %%
from minifer.scheduler.request import State


def my_run(self, requests):
    """Give each request what it can use of the budget; some may be preempted by others before their turn comes."""
    raise NotImplementedError("task 7.3")


check("7.3", my_run)

# %% [markdown]
# Two more decisions make the scheduler complete: **7.4, `_why_not`** (may this request come in, and if not, why?) and
# **7.5, `_preempt`** (who has to leave?). They are best written in the file they belong to:
#
# ```
# minifer labs start 7       # the files of the phase, with gaps where your functions go
# minifer labs run 7         # the tests of the phase, on your file
# minifer labs hint 7.4      # when you are stuck
# ```
#
# <details><summary>A hint for 7.4</summary>In this order: seats, blocks, tokens. The first thing that is missing is the
# reason.</details>
#
# ## Break
#
# If 7.5 is on your list, write it first: what follows shows nearly all of it.
#
# This `_preempt` has passed a review. It takes the newest request, gives its blocks back, puts it into the queue,
# counts it, writes it down. With enough memory nobody ever calls it. Then the server became popular.


# %%
def broken_preempt(self, why):
    """One line of this is wrong."""
    victim, draft = self.victim(self.running), self._draft
    self._leave(victim, State.PREEMPTED)
    self.waiting.append(victim)
    victim.num_preemptions += 1
    self.num_preemptions += 1
    draft.preempted.append((victim.id, why))
    draft.copies.pop(victim.id, None)
    if victim.id in draft.seqs:
        draft.budget += len(draft.seqs.pop(victim.id).tokens)
    return victim


class Broken(ContinuousScheduler):
    """The reference, with that function in it."""

    _preempt = broken_preempt


# %% [markdown]
# The symptom: users report that answers **freeze in the middle of a sentence**, for minutes, and then go on as if
# nothing had happened. Throughput is fine, and there are no errors. Here it is on the stand-in model: 60 people at
# once, few blocks, and for each answer the longest pause between two of its tokens, in steps.


# %%
from minifer.scheduler.fake import FakeExecutor


def pauses(scheduler_class):
    """Steps until all is answered, preemptions, and the longest pause within each of 60 answers."""
    scheduler = scheduler_class(EngineConfig(num_blocks=12, block_size=4, max_num_seqs=6, enable_prefix_caching=False))
    engine, seen, step = Engine(scheduler, FakeExecutor(12, 4)), {}, 0
    for number in range(60):
        engine.add(Request(f"r{number}", (1, 2, 3), SamplingParams(max_tokens=16), float(number)))
    while engine.has_work:
        step += 1
        for event in engine.step():
            seen.setdefault(event.request_id, []).append(step)
    return step, scheduler.num_preemptions, [int(max(np.diff(steps))) for steps in seen.values()]


for scheduler_class in (ContinuousScheduler, Broken):
    steps, preemptions, longest = pauses(scheduler_class)
    print(f"{scheduler_class.__name__:<20} {steps} steps, {preemptions} preemptions, ", end="")
    print(f"longest pause: median {digits(np.median(longest))}, worst {max(longest)} steps")

# %% [markdown]
# As many steps, no more preemptions, and yet the pauses are of another order. Who is waiting so long, and behind whom?
# Look at the line of `broken_preempt` that decides where the victim waits, and at rule 3 in the docstring of
# `minifer/scheduler/continuous.py`, before you unfold.
#
# <details><summary>The bug</summary>
#
# <code>self.waiting.append(victim)</code> puts the victim behind everybody who waits, also behind those who came long
# after it. Admission takes the first of the queue, so an answer that was nearly done now waits for the whole queue, and
# perhaps loses its place again when it is back. It must go where its arrival puts it:
# <code>insort(self.waiting, victim, key=by_rank)</code>. Averages never show this. A percentile of the <em>gaps</em>
# does, and so does a theorem: nobody is overtaken for ever.
#
# </details>
#
# Which test of the phase would have caught it in review?

# %%
check("7.5", broken_preempt)

# %% [markdown]
# ## Compare
#
# The same decisions in engines that serve millions (names as in their main branches of 2026; files move now and then):
#
# | | file | look for |
# |---|---|---|
# | **who runs next** in vLLM | `vllm/v1/core/sched/scheduler.py` | `schedule` |
# | llama.cpp | `tools/server/server-context.cpp` | `update_slots` |
# | Ollama | `runner/ollamarunner/runner.go` | `forwardBatch` |
# | **the plan** in vLLM | `vllm/v1/core/sched/output.py` | `SchedulerOutput` |
# | llama.cpp | `include/llama.h` | `llama_batch` |
# | Ollama | `runner/ollamarunner/runner.go` | `batchState` |
# | **limits of a step** in vLLM | `vllm/config/scheduler.py` | `max_num_batched_tokens` |
# | llama.cpp | `common/arg.cpp` | `--parallel`, `--batch-size` |
# | Ollama | `envconfig/config.go` | `OLLAMA_NUM_PARALLEL` |
# | **the victim** in vLLM | `vllm/v1/core/sched/scheduler.py` | `_preempt_request` |
# | **latency from stamps** in vLLM | `vllm/benchmarks/serve.py` | `calculate_metrics` |

# %% [markdown]
# vLLM's `schedule` first goes through `self.running` and then through `self.waiting`, with one `token_budget`: you have
# just written its first loop. Its `_preempt_request` ends in `self.waiting.prepend_request(request)`, the *front* of
# the queue: no frozen streams there. llama.cpp and Ollama have a fixed number of slots and no preemption. They do mix
# prompts and decodes in a batch, so they, too, batch continuously.

# %% [markdown]
# ## Five questions
#
# <details><summary>1. Users complain about the wait for the first word; the words then come quickly. What do you look
# at first?</summary>The load. TTFT contains the queue. Near saturation it is nearly all queue, and no faster kernel
# helps as much as fewer requests or one more machine.</details>
#
# <details><summary>2. You double <code>max_num_seqs</code>. What happens to throughput, to ITL, to memory?</summary>
# More answers share each reading of the weights, so tokens per second rise; every step takes longer, so ITL rises; and
# twice as many answers hold blocks, so preemptions may begin.</details>
#
# <details><summary>3. All answers have the same length. What is gained by continuous batching?</summary>With all
# requests there from the start, nothing: E[max] = E[mean]. With arrivals spread over time, still much: nobody waits for
# a batch to end.</details>
#
# <details><summary>4. Why do decodes come before prompts in a step, and not the other way round?</summary>A decode is
# one token and somebody is watching; a prompt can use whatever is left. The other way round, every long prompt would
# stop every stream.</details>
#
# <details><summary>5. Why is the <em>newest</em> request the victim?</summary>It has the least to compute again, and
# the oldest then always makes progress, so everything ends some day. Taking the oldest could go round in
# circles.</details>

# %% [markdown]
# ## Three numbers to write down
#
# Notebook 10 asks for them again, with a real server and a real client in place of the virtual clock.

# %%
print(f"1. a step costs {digits(once_ms)} ms + {digits(each_ms)} ms for each answer in it")
print(f"2. the most this machine can serve: {digits(best)} requests/s (64 tokens in, 32 out on average, 8 seats)")
print(f"3. TTFT at 90 % of that: {digits(times_idle)} times the idle one; ITL: ", end="")
print(f"{digits(continuous[loads.index(0.9)]['p50_itl_ms'] / continuous[0]['p50_itl_ms'])} times")
