# %% [markdown]
# # 11. A fleet on a laptop
#
# **How many machines does it take, and can you know before you have rented them?**
#
# You have read the scheduler, the prefix cache and the router, and measured what a step costs. That is nearly all of a
# data centre. What is missing is time: put a clock that jumps in the place of one that ticks, and a laptop runs eight
# machines for a minute in a second. You will check that against your own machine first, then size a fleet, and then
# write the policy that decides who gets what.
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
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", f"{SOURCE}[test]"], check=True)

# %%
import time

import matplotlib.pyplot as plt
import numpy as np

from minifer import LLM
from minifer.apps import notebook
from minifer.apps.notebook import check, digits, show

rng = np.random.default_rng(0)
SLO = {"ttft": 2000.0, "tpot": 120.0}  # what is promised, in milliseconds
notebook.style()
notebook.summary()

# %%
show(
    notebook.flow(
        [
            ("arrivals", "when, how long"),
            ("router()", "which replica?"),
            ("scheduler()", "what runs in a step?"),
            ("a formula", "how long would it take?"),
        ],
        back="move this replica's clock forward by so much; whoever is furthest behind goes next",
    ),
    "Figure 1. The simulator: every decision is taken by the engine's own code, only the arithmetic is left out.",
    "Four boxes in a row: arrivals, router, scheduler, a formula. An arrow leads back: move this replica's clock "
    "forward by so much; whoever is furthest behind goes next.",
)

# %% [markdown]
# ## See
#
# A fleet of four, on a machine you may not have: NVIDIA L4 by its datasheet, of which we believe 70 percent, and 2 ms of
# overhead for each step. The model has the shape of Llama 3.1 8B, in bfloat16. No weights are needed: nobody multiplies.

# %%
from minifer.apps.simulate.capstone import SHAPE
from minifer.apps.simulate.machine import datasheet_machine
from minifer.apps.simulate.outcome import simulate
from minifer.apps.workloads import make_workload

l4 = datasheet_machine("l4", SHAPE, efficiency=0.7, step_overhead_s=0.002, max_num_seqs=24, max_num_batched_tokens=384)


def traffic(rate, seconds=12, beginnings=32):
    """Requests with a long shared beginning and a short end of their own, `rate` per second."""
    return make_workload(
        "prefix_repetition", num_prompts=max(beginnings, round(rate * seconds)), request_rate=rate, seed=0,
        vocab_size=SHAPE.vocab_size, prefix_repetition_num_prefixes=beginnings, prefix_repetition_prefix_len=1024,
        prefix_repetition_suffix_len=128, prefix_repetition_output_len=64,
    )  # fmt: skip


before = time.perf_counter()
found = simulate(l4, traffic(6), replicas=4, policy="round-robin", slo_ms=SLO)
took = digits(time.perf_counter() - before)
print(f"{found['completed']} requests, {found['duration']:.3g} s of traffic, simulated in {took} s")
print(f"TTFT p50 {digits(found['p50_ttft_ms'])} ms, p99 {digits(found['p99_ttft_ms'])} ms;", end=" ")
print(f"TPOT p50 {digits(found['p50_tpot_ms'])} ms; goodput {digits(found['request_goodput'])} requests/s")
for i, row in enumerate(found["replicas"]):
    print(f"replica {i}: {row['requests']:>3} requests, busy {row['busy']:.0%}, hits {row['prefix_hit_rate']:.0%}")

# %% [markdown]
# **May one believe that?** Not yet. A simulation that was never held against the real thing is an opinion. So do it on
# the only machine you have. First let the engine serve a mix of requests while every step is timed, and fit the formula
# (a curve over the rows of a step, a price per key that attention reads, and so on) to the steps.

# %%
from minifer.apps.simulate.calibrate import StepTimer
from minifer.apps.simulate.fit import fit
from minifer.apps.simulate.real import run_real

models = notebook.choose_models()
llm = LLM(models.speed, max_model_len=512, max_num_seqs=4, max_num_batched_tokens=128)
window = llm.config.window()


def requests(count, rate, seed):
    """Prompts of 32 to 96 tokens, answers of 12 to 36."""
    return make_workload(
        "random", num_prompts=count, request_rate=rate, seed=seed, vocab_size=llm.vocab_size, random_input_len=64,
        random_output_len=24, random_range_ratio=0.5,
    )  # fmt: skip


run_real(llm, requests(2, np.inf, "warm-up"))
llm.engine.trace = timer = StepTimer(window)
run_real(llm, requests(6, np.inf, "calibration 1"))  # full batches
run_real(llm, requests(4, 1.0, "calibration 2"))  # and nearly empty ones
llm.engine.trace = None
step_time = fit(timer.samples, window)
print(models.note or f"{len(timer.samples)} steps of {models.speed} timed")

# %% [markdown]
# Then other requests, for real and simulated: same arrivals, same limits, same scheduler. What was fitted was not this.

# %%
from minifer.apps.simulate.fleet import Fleet, Replica

mean_step = float(np.median([sample.seconds for sample in timer.samples]))
arrivals = requests(12, 0.06 / mean_step, "validation")
real = run_real(llm, arrivals)
virtual = Fleet(lambda _: Replica(llm.limits, step_time, window), 1).run(arrivals)
a, b = real.summary(), virtual.summary()
print(f"{'':<22}{'real':>8}{'simulated':>12}{'error':>9}")
for key in ("p50_ttft_ms", "p90_ttft_ms", "p50_tpot_ms", "p90_tpot_ms", "output_throughput"):
    print(f"{key:<22}{digits(a[key]):>8}{digits(b[key]):>12}{100 * (b[key] / a[key] - 1):>+8.0f} %")

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
for ax, name in zip(axes, ("ttft", "tpot"), strict=True):
    for tally, label in ((real, "real"), (virtual, "simulated")):
        values = sorted(1e3 * getattr(metrics, name) for metrics in tally.finished)
        share = 100 * np.arange(1, len(values) + 1) / len(values)
        ax.step([0, *values], [0, *share], where="post", label=label)
    ax.set(xlabel=f"{name.upper()}, milliseconds", ylabel="percent of requests, at most", xlim=(0, None))
    ax.legend(loc="lower right")
show(
    figure,
    f"Figure 2. The same twelve requests on this machine, run and simulated ({models.speed}, 4 seats).",
    f"Two staircase charts, real beside simulated. Median time to first token {digits(a['p50_ttft_ms'])} against "
    f"{digits(b['p50_ttft_ms'])} milliseconds, median time per output token {digits(a['p50_tpot_ms'])} against "
    f"{digits(b['p50_tpot_ms'])}.",
)

# %% [markdown]
# Where the two differ, ask which of them is off. A real machine has other tenants, and the formula knows only steps like
# those it was shown. `minifer simulate validate` does this properly: a minute of calibration and three workloads.
#
# ## Predict
#
# Back to the four L4. Write down your guesses:
#
# 1. From 1 to 8 replicas, with round-robin: how many times the rate can the fleet take within its promises?
# 2. The traffic has 32 beginnings of 1,024 tokens. Prefix affinity instead of round-robin, at four replicas: how
#    many times the goodput, in heavy traffic?

# %%
guesses = notebook.Guesses()
guesses.predict("8 replicas against 1, times the rate", None)
guesses.predict("affinity against round-robin, times the goodput", None)

# %% [markdown]
# ## Run
#
# **Capacity** is the highest rate at which nine in ten requests keep all promises: here a first token within 2 s and
# 120 ms for each one after it. Halve the interval between a rate that is kept and one that is not. (`minifer simulate
# capacity` does it more cleverly, and for all settings of an engine.)

# %%
from minifer.metrics import meets


def kept(replicas, policy, rate):
    """The share of requests that kept their promises."""
    tally = Fleet(lambda _: Replica(l4.config, l4.time, SHAPE.window()), replicas, policy).run(traffic(rate))
    return sum(meets(metrics, SLO) for metrics in tally.finished) / len(tally.finished)


def capacity(replicas, policy):
    """The highest rate at which 90 % keep their promises, to some 5 %: the interval is halved six times."""
    low, high = 0.5 * replicas, 16.0 * replicas
    for _ in range(6):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if kept(replicas, policy, middle) >= 0.9 else (low, middle)
    return low


sizes = [1, 2, 4, 8]
rates = {policy: [capacity(n, policy) for n in sizes] for policy in ("round-robin", "prefix-affinity")}
for policy, found_rates in rates.items():
    print(f"{policy:<16}", "  ".join(f"{n}: {digits(r)}/s" for n, r in zip(sizes, found_rates, strict=True)))

# %%
figure, ax = plt.subplots()
for (policy, found_rates), marker in zip(rates.items(), "os", strict=True):
    ax.plot(sizes, found_rates, marker=marker, label=policy)
ax.plot(sizes, [n * rates["round-robin"][0] for n in sizes], ":", color=notebook.GREY, label="n times one machine")
ax.set(xlabel="replicas", ylabel="requests per second within the promises", xticks=sizes, ylim=(0, None))
ax.legend()
show(
    figure,
    "Figure 3. What a fleet of simulated L4 can take, by its size and its router.",
    f"Line chart: round-robin rises from {digits(rates['round-robin'][0])} requests per second with one replica to "
    f"{digits(rates['round-robin'][-1])} with eight, prefix affinity to {digits(rates['prefix-affinity'][-1])}.",
)
guesses.reveal("8 replicas against 1, times the rate", rates["round-robin"][-1] / max(rates["round-robin"][0], 1e-9))

# %% [markdown]
# Now hold the fleet at four and the traffic at more than round-robin can take, and change only the router.

# %%
HEAVY = 1.3 * rates["round-robin"][2]
policies = ["round-robin", "least-loaded", "prefix-affinity", "cheapest"]
outcomes = {policy: simulate(l4, traffic(HEAVY), replicas=4, policy=policy, slo_ms=SLO) for policy in policies}
print(f"at {digits(HEAVY)} requests/s    goodput   TTFT p50      p99   cache hits")
for policy, outcome in outcomes.items():
    hits = 100 * outcome["total_cached_tokens"] / outcome["total_input_tokens"]
    print(
        f"{policy:<22} {digits(outcome['request_goodput']):>9} {digits(outcome['p50_ttft_ms']):>7} ms"
        f" {digits(outcome['p99_ttft_ms']):>5} ms {digits(hits):>10} %"
    )
gain = outcomes["prefix-affinity"]["request_goodput"] / outcomes["round-robin"]["request_goodput"]
guesses.reveal("affinity against round-robin, times the goodput", gain)

# %%
figure, ax = plt.subplots()
percents = np.arange(101)
for policy, outcome in outcomes.items():
    ax.plot(outcome["cumulative"]["ttft_ms"], percents, label=policy)
ax.axvline(SLO["ttft"], color=notebook.GREY, linewidth=1, linestyle=":")
ax.set(xscale="log", xlabel="TTFT, milliseconds", ylabel="percent of requests, at most")
ax.legend()
show(
    figure,
    f"Figure 4. The same requests on the same four machines, at {digits(HEAVY)} per second: only the router differs.",
    "Cumulative chart of the time to first token by routing policy: "
    + ", ".join(f"{name} has a median of {digits(o['p50_ttft_ms'])} milliseconds" for name, o in outcomes.items())
    + ". A dotted line marks the promise of 2,000 milliseconds.",
)

# %% [markdown]
# ## Explain
#
# **A fleet is not n machines.** With round-robin every replica meets every beginning and must compute and keep all of
# them. Each cache holds the same things, and eight small caches are one small cache, eight times. A router that
# remembers gives each beginning a home: the caches together become one large cache.
#
# **The router pulls in two directions.** Where the beginning is known there is less to do, but everybody who shares it
# goes there too. `prefix-affinity` follows the cache until a replica has four requests more than the idlest.
# `cheapest` has one currency: tokens to compute, and a price in tokens for each request that waits or runs there.
#
# **Averages hide it.** At a rate that the fleet can take, all routers look alike in the median. Look at the p99, and at
# goodput.
#
# What the simulator doesn't know: tokenization, HTTP, a network between router and machines, and a datasheet that lies.
# Its L4 is a best case times 0.7, until somebody measures one.

# %% [markdown]
# ## Build
#
# **Task 11.2, `cheapest`** (15 minutes). A policy sees the prompt's length, and for every living replica how many of
# its first tokens were sent there before and how many requests it has not finished. It answers with a place in these
# lists. Cost: tokens left to compute, plus `price` for each unfinished request. Equal costs go to the smaller load, then
# to the first.
#
# <details><summary>Hint 1</summary>Make a list of costs first.</details>
# <details><summary>Hint 2</summary><code>min(range(n), key=...)</code>, with a tuple as the key: cost, load,
# place.</details>

# %%
from minifer.apps.simulate.policies import PRICE


def my_cheapest(length, matched, load, price=PRICE):
    """my_cheapest(100, [96, 0], [3, 0], price=20) is 0: 4 tokens and 60 for the three, against 100."""
    raise NotImplementedError("task 11.2")


check("11.2", my_cheapest)

# %% [markdown]
# A policy of your own goes straight into the fleet. This one looks at the load, and only among equals at the cache.
# Change it, and see whether you can beat `cheapest`.


# %%
def my_policy(length, matched, load):
    """Anything you like: a place in `matched` and `load`, which begin with the replica whose turn it is."""
    return min(range(len(load)), key=lambda i: (load[i], length - matched[i]))


mine = simulate(l4, traffic(HEAVY), replicas=4, policy=my_policy, slo_ms=SLO)
print(f"mine {digits(mine['request_goodput'])}, cheapest {digits(outcomes['cheapest']['request_goodput'])} requests/s")

# %% [markdown]
# **Task 11.1, `Fleet.run`** (40 minutes). The loop of the virtual clock. Two things can happen next, the next arrival or
# the earliest step of a replica; the earlier one does, and at the same moment the arrival. Read `Fleet` in
# `minifer/apps/simulate/fleet.py` down to `run`, then write it. In a lab folder: `minifer labs start 11`.
#
# <details><summary>Hint 1</summary>Keep a heap of <code>(next_step, index)</code> with one entry for each replica that
# has work.</details>
# <details><summary>Hint 2</summary><code>self._route(arrival)</code> gives the index of a replica that was idle before,
# else None: that one joins the heap. <code>_in_order(arrival, next(coming, None))</code> is the next arrival.</details>
# <details><summary>Hint 3</summary><code>self._step(index, horizon)</code> may take many steps at once, but none that
# starts after <code>horizon</code>. What must the horizon be?</details>


# %%
def my_run(self, arrivals, progress=None):
    """Serve all arrivals, which come in the order of time, to their last token; returns `self.tally`."""
    raise NotImplementedError("task 11.1")


check("11.1", my_run)

# %% [markdown]
# ## Break
#
# Somebody has "improved" the policy. It finds the cache more often than any other. In production some
# machines glowed and others stayed cold.


# %%
def broken_cheapest(length, matched, load, price=PRICE):  # noqa: ARG001
    """One line of this is wrong."""
    cost = [length - found for found in matched]
    return min(range(len(cost)), key=lambda i: (cost[i], load[i], i))


for name, policy in (("broken", broken_cheapest), ("cheapest", "cheapest")):
    outcome = simulate(l4, traffic(HEAVY, beginnings=2), replicas=4, policy=policy, slo_ms=SLO)
    shares = " ".join(f"{row['requests']:>4}" for row in outcome["replicas"])
    hits = 100 * outcome["total_cached_tokens"] / outcome["total_input_tokens"]
    print(f"{name:<9} requests by replica {shares}   hits {digits(hits)} %   ", end="")
    print(f"goodput {digits(outcome['request_goodput'])}")

# %% [markdown]
# <details><summary>The bug</summary>
#
# The load has no price. With 32 beginnings of equal popularity nobody notices, since they spread by themselves. With
# two, two machines do everything and the others watch. Its hit rate is the best of all, which shows that a hit rate is
# not a goal. <code>length - found + price * unfinished</code> is what was meant.
#
# </details>

# %%
check("11.2", broken_cheapest)

# %% [markdown]
# ## Compare
#
# | | file | look for |
# |---|---|---|
# | **a router** in vLLM's production stack | `src/vllm_router/routers/routing_logic.py` | `PrefixAwareRouter`, `RoundRobinRouter` |
# | NVIDIA Dynamo | `lib/llm/src/kv_router/scheduler.rs` | overlap of blocks, weighed against load |
# | llama.cpp | `tools/server/server-models.cpp` | a process for each model, no replicas |
# | Ollama | `server/sched.go` | which model is loaded, no replicas |
# | **a simulator**: Vidur | `vidur/scheduler/global_scheduler/lor_global_scheduler.py` | least outstanding requests |
# | Vidur's vLLM | `vidur/scheduler/replica_scheduler/vllm_replica_scheduler.py` | a copy, written for the simulator |
#
# Dynamo's cost is that of `cheapest`: blocks to prefill times a weight, plus the blocks that are being decoded. And the
# last line is the difference that figure 1 is about: here the scheduler is not rewritten for the simulation.

# %% [markdown]
# ## Five questions
#
# <details><summary>1. Eight replicas behind round-robin can take more than eight times the rate of one. Or less. Why
# isn't it eight?</summary>Random bursts even out over more machines, which helps; but every cache has to hold
# everything, and round-robin sends long after long to the same replica by accident.</details>
#
# <details><summary>2. <code>length</code> is an argument of <code>cheapest</code>, and yet the choice does not depend on
# it. Why?</summary>It is the same for every replica, so it cancels out. It would count if machines differed in
# speed.</details>
#
# <details><summary>3. The simulator leaps over hundreds of decode steps at once. When is that allowed?</summary>As long
# as nothing can change in between: nobody waits, nobody finishes, no block is missing, and nobody arrives. Hence the
# horizon.</details>
#
# <details><summary>4. A machine is 5 % slower than its formula says. By how much are waiting times off?</summary>Far
# from saturation by 5 %. At 90 % load, by much more: a queue multiplies the error, as in notebook 07.</details>
#
# <details><summary>5. A replica dies and comes back with an empty cache. What must the router do?</summary>Forget what
# it had sent there (<code>Router.forget</code>), or it will send prompts to a cache that is not there any more.</details>

# %% [markdown]
# ## Three numbers to write down
#
# In notebook 12 you get such a fleet, with promises it does not keep, and change whatever you like.

# %%
error = 100 * (b["p50_tpot_ms"] / a["p50_tpot_ms"] - 1)
print(f"1. one simulated L4 takes:                       {digits(rates['round-robin'][0])} requests/s")
print(f"2. eight behind prefix affinity:                 {digits(rates['prefix-affinity'][-1])} requests/s")
print(f"3. simulated against real TPOT on this machine:  {error:+.3g} %")
llm.close()
