# %% [markdown]
# # 10. A server and a fair load test
#
# **Two honest people measure the same server and publish numbers that differ by a factor of ten. How?**
#
# You will start a real server, watch the bytes of an answer arrive, load it until it gives way, and find the rate at
# which it does. Then you will take one log of one request and get four different "times to first token" out of it, all
# by definitions that somebody uses. After this notebook you will read benchmark tables with other eyes.
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
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", f"{SOURCE}[serve,test]"], check=True)

# %%
import json
import math
import os
import socket
import tempfile
import time
from pathlib import Path

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
            ("client", "POST, then listens"),
            ("router()", "which replica?"),
            ("engine()", "step by step"),
            ("sse()", "one event per token"),
        ],
        back="events come back over the same connection, while the engine is still at work",
    ),
    "Figure 1. The way of a request through a server: one question, many small answers.",
    "Four boxes in a row: client, router, engine, sse. An arrow leads from the last box back to the first: events come "
    "back over the same connection while the engine is still at work.",
)

# %% [markdown]
# ## See
#
# The next cell starts the server as its own process, on this machine only and on any free port. It is what you get from
# `minifer serve smollm2-135m --port 0` in a terminal. It ends with this notebook, even if you kill the kernel: look into
# `minifer/apps/notebook_server.py` if you want to know how one makes sure of that.

# %%
from minifer.apps.notebook_server import start_server

models = notebook.choose_models()
model = models.speed  # the one whose times are real
before = time.perf_counter()
server = start_server(model, "--max-num-seqs", "4")  # four seats: a small server, so that a small test can fill it
print(models.note or f"{model} is served; it took {digits(time.perf_counter() - before)} s to load")

# %% [markdown]
# HTTP needs no library. A request is a few lines of text, so write them into a socket by hand, and note the time
# whenever bytes come back. (With curl: `curl -N URL/v1/completions -H 'Content-Type: application/json' -d '{"prompt": "Hi", "stream": true}'`.)

# %%
host, port = server.url.removeprefix("http://").split(":")


def listen(body):
    """POST a completion and return what comes back: (milliseconds since it was sent, bytes) for each read."""
    payload = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
    with socket.create_connection((host, int(port))) as connection:
        start, pieces = time.perf_counter(), []
        connection.sendall(head.encode() + payload)
        while data := connection.recv(65536):
            pieces.append((1e3 * (time.perf_counter() - start), data))
    return pieces


question = {"model": model.rpartition(":")[2], "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
question |= {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
listen(question)  # once for nothing: the first request also wakes up what sleeps
pieces = listen(question)
print(f"{len(pieces)} pieces, {sum(len(data) for _, data in pieces):,} bytes for 12 tokens\n")
print(f"after {digits(pieces[0][0])} ms:\n{pieces[0][1].decode()[:520]}")

# %% [markdown]
# Read it from the top: a status line, headers, a blank line. `Transfer-Encoding: chunked` means that nobody knows yet
# how long the answer will be; each chunk begins with its length in hexadecimal. Inside the chunks is the second format,
# **server-sent events** (SSE): a line that begins with `data: `, and a blank line as the end of the event. That is all
# there is to streaming.

# %%
events = []  # (milliseconds, text or the name of what it was)
for at, data in pieces:
    for line in data.decode().splitlines():
        if line.startswith("data: {"):
            choices = json.loads(line[6:])["choices"]
            events.append((at, choices[0]["text"] if choices else "usage"))
        elif line.startswith("data: "):
            events.append((at, line[6:]))
for at, what in events:
    print(f"{digits(at):>6} ms  {what!r}")

# %%
at = np.array([when for when, _ in events])
names = [name if name in ("usage", "[DONE]") else name.strip() for _, name in events]
figure, ax = plt.subplots(figsize=(8, 2.6))
ax.vlines(at[:-2], 0, 1, color=notebook.BLUE, linewidth=2)
ax.vlines(at[-2:], 0, 0.5, color=notebook.GREY, linestyle=":", linewidth=2)
for x, name in zip(at[:-2], names[:-2], strict=True):
    ax.text(x, 1.06, name, rotation=45, fontsize=9, ha="left", va="bottom")
ax.annotate("", (at[0], 0.3), (0, 0.3), arrowprops={"arrowstyle": "<->", "color": notebook.VERMILLION})
ax.text(at[0] / 2, 0.36, "TTFT", color=notebook.VERMILLION, ha="center", fontsize=10)
ax.set(xlabel="milliseconds since the request was sent", ylim=(0, 2.0), yticks=[], xlim=(0, None))
ax.grid(visible=False)
show(
    figure,
    "Figure 2. One streamed answer as the client saw it: tokens (solid), then the counts and the end (dotted).",
    f"A time line. The first token arrives after {digits(at[0])} milliseconds, eleven more follow until "
    f"{digits(at[-3])} milliseconds; the last two events carry no token.",
)

# %% [markdown]
# ## Predict
#
# Now many requests at once: prompts of 64 tokens, answers of 16. Before you see anything, write down
#
# 1. how many of them per second this server can finish, at most;
# 2. how many times as long the *median* TTFT is at twice that rate as at less than half of it.

# %%
guesses = notebook.Guesses()
guesses.predict("requests per second, at most", None)
guesses.predict("median TTFT at twice the capacity, times", None)

# %% [markdown]
# ## Run
#
# `minifer bench serve` is the load generator; its options and its JSON are those of `vllm bench serve`. First
# everything at once, which tells how much the server can do. Then three rates, chosen with that in mind.
#
# **Requests arrive when they arrive.** A client that waits for an answer before it asks again (a *closed loop*) slows
# down with the server and never sees a queue. Users don't do that. So the times are drawn beforehand, with exponential
# gaps as from many independent people, and each request is sent at its time whatever became of the others.


# %%
def bench(rates, requests=12, base_url=server.url):
    """One result per rate, as `minifer bench serve` prints them with --json."""
    words = [sys.executable, "-m", "minifer", "bench", "serve", "--base-url", base_url, "--ignore-eos", "--json"]
    words += ["--random-input-len", "64", "--random-output-len", "16", "--num-prompts", str(requests)]
    words += ["--request-rate", ",".join(rates), "--disable-tqdm", "--ready-check-timeout-sec", "60"]
    with tempfile.TemporaryDirectory() as folder:  # it draws a figure too, which isn't wanted here
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        raise RuntimeError(f"{base_url}: {done.stderr[-500:]}")
    return json.loads(done.stdout)["points"]


(flood,) = bench(["inf"])
capacity = flood["request_throughput"]
print(f"all at once: {digits(capacity)} requests/s, {digits(flood['output_throughput'])} tokens/s")

# %%
requests = int(np.clip(8 * capacity, 10, 14))  # more than there are seats, or there would be no queue
points = bench([f"{share * capacity:.3g}" for share in (0.4, 0.8, 2.0)], requests)
print("requests/s   sent  finished   TTFT p50      p99   TPOT p50")
for point in points:
    sent = point["realised_request_rate"]
    print(
        f"{float(point['request_rate']):>10.3g} {digits(sent):>6} {digits(point['request_throughput']):>9}"
        f" {digits(point['p50_ttft_ms']):>7} ms {digits(point['p99_ttft_ms']):>5} ms {digits(point['p50_tpot_ms']):>7} ms"
    )

# %%
rates = [float(point["request_rate"]) for point in points]
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
left.plot(rates, [point["request_throughput"] for point in points], marker="o", label="finished")
left.plot([0, max(rates)], [0, max(rates)], ":", color=notebook.GREY, label="as many as were sent")
left.axhline(capacity, color=notebook.BLACK, linestyle="-.", linewidth=1, label="all at once")
left.set(xlabel="requests per second", ylabel="finished per second", ylim=(0, max(rates)))
left.legend(fontsize=9)
for key, marker in (("p50_ttft_ms", "o"), ("p99_ttft_ms", "s"), ("p50_tpot_ms", "D")):
    name = key[4:8].upper() + ", " + key[:3]
    right.plot(rates, [point[key] for point in points], marker=marker, label=name)
right.axvline(capacity, color=notebook.BLACK, linestyle="-.", linewidth=1, label="the knee")
right.set(xlabel="requests per second", ylabel="milliseconds", yscale="log")
right.legend(fontsize=9)
show(
    figure,
    f"Figure 3. Below the knee the server keeps up, above it the queue decides ({model}, 64 tokens in, 16 out).",
    f"Two charts against the request rate. Left: finished requests per second level off near {digits(capacity)}. "
    f"Right: median time to first token rises from {digits(points[0]['p50_ttft_ms'])} to "
    f"{digits(points[-1]['p50_ttft_ms'])} milliseconds; time per output token rises less.",
)

# %%
guesses.reveal("requests per second, at most", capacity)
times = points[-1]["p50_ttft_ms"] / points[0]["p50_ttft_ms"]
guesses.reveal("median TTFT at twice the capacity, times", times)

# %% [markdown]
# ## Explain
#
# **The knee** is where requests come as fast as they are finished. Below it the queue empties again and again, and TTFT
# hardly knows the rate. Above it the queue grows for as long as people keep coming. A TTFT from there describes the
# *length of the test*: run it for twice as long and it doubles. So never compare latencies of two servers at a rate
# that is above the knee of one of them.
#
# **TPOT bends too**, but it is bounded: the batch has four seats. Who has none waits in front, and that is TTFT.
#
# A dozen requests are a sketch. The 99th percentile of a dozen values is the worst one, more or less; a p99 wants hundreds
# of requests, and a machine that does nothing else.

# %% [markdown]
# **Four answers from one log.** Here is the log of one request as a client saw it, with a chat server that begins with
# an empty event which only says `"role": "assistant"`, as many do. Which of these is *the* TTFT? And TPOT?

# %%
LOG = [(0.10, ""), (0.50, "A"), (0.52, "B"), (0.54, "CD"), (0.56, "")]  # (seconds since it was sent, text)
DUE = -0.30  # the schedule wanted it sent 0.30 s earlier, but the client allowed only so many at a time
TOKENS = 4  # the server's own count: "CD" were two tokens in one event

texts = [when for when, text in LOG if text]
first, last = texts[0], texts[-1]
print("TTFT, any event counts:            ", digits(LOG[0][0]), "s")
print("TTFT, first text counts:           ", digits(first), "s   (minifer)")
print("TTFT, from when it was due:        ", digits(first - DUE), "s   (what the user waited)")
print("TPOT, per token after the first:   ", digits(1e3 * (last - first) / (TOKENS - 1)), "ms")
print("TPOT, events taken for tokens:     ", digits(1e3 * (last - first) / (len(texts) - 1)), "ms")
print("TPOT, whole answer by all tokens:  ", digits(1e3 * last / TOKENS), "ms  (the first one's wait is in it)")

# %% [markdown]
# Nobody lied. Questions to ask of any table:
#
# | question | why |
# |---|---|
# | What stops the TTFT clock: any event, or text? | chat servers send an empty event first |
# | What starts it: due, sent, or received by the server? | a client with a limit hides the queue in front of it |
# | Are tokens counted by the server, or are they events? | an event may hold none or several |
# | By n or by n - 1, and is *ITL* one value per gap or per request? | llama-server divides by n - 1, Ollama by n |
# | Open or closed loop? Which rate, and where is the knee? | a closed loop cannot overload anything |
# | Were prompts seen before? | a warm prefix cache skips the prefill |
# | What of failed requests? | a refused one is very quick |

# %%
asked = {**question, "prompt": "Fairness, once more: " + "the same prompt again and again. " * 12, "max_tokens": 1}
waits = [listen(asked)[0][0] for _ in range(3)]
print("the same prompt, three times, TTFT:", ", ".join(f"{digits(wait)} ms" for wait in waits))
print("The prefix cache (notebook 08) has made a benchmark of nothing out of the second and third.")

# %% [markdown]
# ## Build
#
# **Task 10.2, `sse`** (10 minutes). A value as a server-sent event, in bytes. `as_json(value)` makes JSON of it, in one
# line and in UTF-8.
#
# <details><summary>Hint 1</summary>Look at the bytes above: what does each event begin with?</details>
# <details><summary>Hint 2</summary>And how does the client know that an event is complete?</details>

# %%
from minifer.apps.serve.reply import as_json

print(as_json({"text": "é"}))


def my_sse(value) -> bytes:
    """One server-sent event. my_sse([1]) is b'data: [1]' and two line ends."""
    raise NotImplementedError("task 10.2")


check("10.2", my_sse)

# %% [markdown]
# **Task 10.3, `arrival_times`** (30 minutes). When `n` requests are sent: the first at 0, the gaps from a Gamma
# distribution with shape `burstiness` and mean 1 / rate. `random.Random(f"{seed}:arrivals")` draws the same for everybody.
#
# <details><summary>Hint 1</summary>Rate infinity: all at 0. Burstiness infinity: a metronome, a gap of 1 / rate. What is
# not above 0 is a <code>UsageError</code>, NaN too; so is a negative n.</details>
# <details><summary>Hint 2</summary><code>gammavariate(shape, scale)</code> has the mean shape · scale. Draw with mean 1
# and divide by the rate: then another rate is the same pattern, stretched.</details>
# <details><summary>Hint 3</summary>n requests have n - 1 gaps between them.</details>


# %%
def my_arrival_times(n, rate, burstiness=1.0, seed=0):
    """`n` times in seconds, from 0 on, never falling. Raises UsageError for what makes no sense."""
    raise NotImplementedError("task 10.3")


check("10.3", my_arrival_times)

# %% [markdown]
# **Task 10.1, `Router._decide`** (40 minutes). With several replicas, somebody has to say who gets what. See how the
# three policies of `minifer/apps/serve/router.py` deal out the same twelve prompts, which share three beginnings:

# %%
from minifer.apps.serve.router import POLICIES, Router

beginnings = [rng.integers(0, 900, 64).tolist() for _ in range(3)]
order = [0, 1, 2, 0, 0, 1, 2, 2, 0, 1, 0, 0]
for policy in POLICIES:
    router, load, places, computed = Router(policy, 2), [0, 0], [], 0
    known = [set(), set()]  # which beginnings each replica has in its cache
    for index, which in enumerate(order):
        replica = router.choose([*beginnings[which], index], load).replica
        load[replica] += 1  # nobody finishes meanwhile: the hardest case
        computed += which not in known[replica]
        known[replica].add(which)
        places.append("ABC"[which] + str(replica))
    print(f"{policy:<16} {' '.join(places)}   beginnings computed: {computed}, load {load}")

# %% [markdown]
# A letter is a beginning, a digit the replica. Fewer beginnings computed means less work; an even load means shorter
# queues. Write the decision in a lab folder, where it can be tested in a whole server: `minifer labs start 10`, then
# `minifer labs run 10`. Or here:
#
# <details><summary>Hint 1</summary>Put the living replicas in the order in which it is their turn, the one after
# <code>self._last</code> first. <code>min</code> then takes the right one among equals.</details>
# <details><summary>Hint 2</summary>For affinity: the longest match, and among equals the smaller load. Its price: if it
# has more than <code>self.max_imbalance</code> more to do than the idlest, take the idlest.</details>

# %%
from minifer.apps.serve.router import Choice


def my_decide(self, chain, length, load, living) -> Choice:
    """The replica for a prompt of `length` tokens whose block keys are `chain`; `self._matched(i, chain)` helps."""
    raise NotImplementedError("task 10.1")


check("10.1", my_decide)

# %% [markdown]
# ## Break
#
# A colleague reports: "Our server is fine at 5 requests per second. But as soon as traffic is bursty (burstiness 0.25),
# it breaks down completely, at the same rate!" This is the load generator that was used:

# %%
import random
from itertools import accumulate

from minifer.errors import UsageError


def broken_arrival_times(n, rate, burstiness=1.0, seed=0):
    """One line of this is wrong."""
    if not (rate > 0 and burstiness > 0 and n >= 0):
        raise UsageError(f"n={n}, rate={rate}, burstiness={burstiness}")
    if math.isinf(rate):
        return [0.0] * n
    if math.isinf(burstiness):
        return [i / rate for i in range(n)]
    source = random.Random(f"{seed}:arrivals")
    gaps = (source.gammavariate(burstiness, 1.0) / rate for _ in range(max(0, n - 1)))
    return list(accumulate(gaps, initial=0.0))[:n]


for burstiness in (4.0, 1.0, 0.25):
    sent_at = broken_arrival_times(2000, 5.0, burstiness)
    print(f"burstiness {burstiness:>4}: 2,000 requests asked for at 5.00/s were sent at {digits(1999 / sent_at[-1])}/s")

# %% [markdown]
# <details><summary>The bug</summary>
#
# A Gamma distribution of shape b and scale s has the mean b · s. With scale 1 the mean gap is burstiness / rate, and
# the "bursty" test sent four times as many requests per second. With burstiness 1, which everybody tests, all is right.
# The scale must be 1 / burstiness.
#
# The general lesson is cheaper than the bug: a load test has to report the rate that it <em>really</em> sent, beside
# the one that was asked for. The table above has both.
#
# </details>

# %%
check("10.3", broken_arrival_times)

# %% [markdown]
# ## Compare
#
# Where real peers are installed (`tests/peers/README.md`; the folder that `MINIFER_PEERS` names), the next cell starts
# llama.cpp's own server on the same weights in float32 and asks it with the same client. Otherwise it prints what has
# been recorded.

# %%
server.stop()  # a fair test: nobody else on the machine
print("the server runs:", server.running)
peer_script, results = Path("../tests/peers/serve_peer.py"), Path("RESULTS.md")
if os.environ.get("MINIFER_PEERS") and peer_script.exists() and model == "smollm2-135m":
    words = [sys.executable, str(peer_script), "llama.cpp", "--port", "18089", "--slots", "4"]
    peer = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        (theirs,) = bench(["inf"], base_url="http://127.0.0.1:18089")
        print(f"all at once: minifer {digits(capacity)}, llama.cpp {digits(theirs['request_throughput'])} requests/s")
    finally:
        peer.terminate()
        peer.wait()
else:
    print("No peers here. `minifer bench compare` lets servers take turns; what was recorded (notebooks/RESULTS.md):\n")
    text = results.read_text("utf-8") if results.exists() else ""
    print(text.partition("## Serving")[2].partition("\n## ")[0].strip()[:6000] or "RESULTS.md is not here.")

# %% [markdown]
# The same things elsewhere (names as in their main branches of 2026; files move now and then):
#
# | | file | look for |
# |---|---|---|
# | **the routes** in vLLM | `vllm/entrypoints/openai/api_server.py` | `build_app` |
# | llama.cpp | `tools/server/server-http.cpp` | `set_chunked_content_provider` |
# | Ollama | `server/routes.go`, `middleware/openai.go` | `GenerateRoutes` |
# | **who goes where** in vLLM's production stack | `src/vllm_router/routers/routing_logic.py` | `PrefixAwareRouter` |
# | llama.cpp | `tools/server/server-models.cpp` | one process per model |
# | Ollama | `server/sched.go` | which model is loaded where |
# | **the load generator** in vLLM | `vllm/benchmarks/serve.py` | `get_request`: the Gamma gaps |
# | vLLM's client | `vllm/benchmarks/lib/endpoint_request_func.py` | where `ttft` is set |
# | llama.cpp | `tools/server/bench/bench.py` | k6 drives it |
# | Ollama | `cmd/bench/bench.go` | one request after the other |
#
# Read `get_request` beside your `arrival_times`: it stretches the schedule so that the last request comes at n / rate.

# %% [markdown]
# ## Five questions
#
# <details><summary>1. A benchmark reports a TTFT of 9 s at 10 requests per second, over 100 requests. What would you
# expect over 200?</summary>If 10/s is above the knee, about twice as much: the queue grows as long as the test lasts.
# Ask for the knee first.</details>
#
# <details><summary>2. A load generator keeps 8 requests under way, always. What can it never show you?</summary>A
# queue of more than 8. When the server slows down, so does the client, and the requests that real users would have sent
# meanwhile are missing from the statistics (coordinated omission).</details>
#
# <details><summary>3. Why does each point of a sweep need prompts of its own?</summary>The second point would find the
# first one's prompts in the prefix cache and skip their prefill.</details>
#
# <details><summary>4. An answer of 200 tokens came in 150 events. What do you divide by for TPOT?</summary>By 199, from
# the server's count in <code>usage</code>. Events are what the network and UTF-8 made of the tokens.</details>
#
# <details><summary>5. Prefix affinity sends every request with the popular system prompt to one replica. Why doesn't
# that replica drown?</summary>A hit has a price: with more than <code>max_imbalance</code> requests more than the idlest
# replica it loses, the request goes there, and from then on that one knows the prompt too.</details>

# %% [markdown]
# ## Three numbers to write down
#
# The knee is what you bought; notebook 11 asks how many machines you need for more.

# %%
print(f"1. the knee of this server:               {digits(capacity)} requests/s (64 tokens in, 16 out)")
print(f"2. median TTFT far below it:              {digits(points[0]['p50_ttft_ms'])} ms")
print(f"3. and at twice the knee, times that:     {digits(times)}")
