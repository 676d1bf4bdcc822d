"""A decode step that the host only starts: state on the device, launches recorded once, one wait at the end.

Every launch costs the host 3 to 6 microseconds, and a step of a small model has hundreds; replayed from a CUDA graph
they cost 1 to 2. A graph holds *addresses*, not values, so everything that changes from step to step lives in arrays
that never move. The last kernel of a step writes the new token where the first one of the next step reads it, and moves
position, length and slot on: as long as the same sequences go on, the host brings nothing at all, except a block table
when a sequence has gained a block.

There is one graph for each batch size of `BUCKETS` and way of choosing tokens; a step in between is padded with rows of
slot -1, which write nothing. The first step of a kind runs eagerly (a kernel that was never launched is not loaded yet,
and loading is no part of a graph), the second one records, all further ones replay.

While a step is launched the host waits for nothing and takes no memory; then it waits once, for the tokens, because it
must see them to know who is finished.

Not here: what a layer launches (`cuda.py`), steps that hold prompts, penalties and lists of log-probabilities (the host
samples those).
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from minifer.ops.cuda_launch import Kernels
from minifer.ops.cuda_memory import Spans, Step

if TYPE_CHECKING:
    from minifer.ops.cuda import Ops, Prepared
    from minifer.ops.cuda_memory import DeviceStore

BUCKETS = (1, 2, 4, 8, 16, 32)
"""Batch sizes that have a graph of their own."""

MASK_64 = (1 << 64) - 1
OFF = np.float32(-3e38)
"""A score that min-p cannot reach: it drops nothing."""

I32, F32 = np.dtype(np.int32), np.dtype(np.float32)

SAMPLER_FIELDS: dict[str, np.dtype] = {
    "temperatures": F32,
    "floors": F32,
    "top_ks": I32,
    "top_ps": np.dtype(np.float64),
    "seeds": np.dtype(np.uint64),
}
STATE_FIELDS: dict[str, np.dtype] = {"tokens": I32, "logprobs": F32, "positions": I32, "lengths": I32, "slots": I32}


class Mirror:
    """Arrays on the device, and beside each the host's knowledge of it in page-locked memory.

    Page-locked, because only from there can a copy go on while the host does something else.
    """

    def __init__(self, xp: Any, rows: int, fields: Mapping[str, np.dtype], table_width: int) -> None:
        """Every field `[rows]`, and `tables [rows, table_width]`, all zeros."""
        shapes = {name: ((rows,), dtype) for name, dtype in fields.items()} | {"tables": ((rows, table_width), I32)}
        self.device = {name: xp.zeros(shape, dtype=dtype) for name, (shape, dtype) in shapes.items()}
        self.host = {name: _page_locked(xp, shape, dtype) for name, (shape, dtype) in shapes.items()}

    def bring(self, wanted: Mapping[str, np.ndarray], stream: Any) -> list[str]:
        """Copy to the device, in the background, those arrays that are not there already; their names."""
        changed = [name for name, value in wanted.items() if not np.array_equal(self.host[name][: len(value)], value)]
        for name in changed:
            self.host[name][: len(wanted[name])] = wanted[name]
            self.device[name].set(self.host[name], stream=stream)
        return changed

    def fetch(self, name: str, stream: Any) -> None:
        """Start copying an array to the host; it is there once the stream has come that far."""
        self.device[name].get(stream=stream, out=self.host[name], blocking=False)


class Decoder:
    """Decode steps of one model on one store, up to `BUCKETS[-1]` sequences with tables of at most `width` blocks."""

    def __init__(
        self, ops: "Ops", weights: "Prepared", store: "DeviceStore", width: int, *, graphs: bool = True
    ) -> None:
        """Take the state's arrays; graphs come with the steps that need them."""
        xp = ops.device.xp
        self.ops, self.weights, self.store, self.width, self.graphs = ops, weights, store, width, graphs
        self.state = Mirror(xp, BUCKETS[-1], STATE_FIELDS | SAMPLER_FIELDS, width)
        self._stream = xp.cuda.Stream(non_blocking=True)  # the null stream cannot be recorded
        self._ready, self._done = (xp.cuda.Event(disable_timing=True) for _ in range(2))
        self._recorded: dict[tuple[int, bool], Any] = {}
        self._seen: set[tuple[int, bool]] = set()
        self._warm: set[int] = set()
        self._generation = -1

    @staticmethod
    def takes(seqs: Sequence[Any], draws: Sequence[Any]) -> bool:
        """Whether this is a decode step that needs the host for nothing: one token of every sequence, and a token
        wanted after it."""
        small = len(seqs) == len(draws) <= BUCKETS[-1]
        return small and all(len(seq.tokens) == 1 for seq in seqs) and Decoder.draws_on_device(draws)

    @staticmethod
    def draws_on_device(draws: Sequence[Any]) -> bool:
        """Whether the kernels can choose these tokens: not with penalties, nor where the likeliest are to be listed."""
        return all(
            params.repetition_penalty == 1
            and params.presence_penalty == params.frequency_penalty == 0
            and not params.logprobs
            for params, _, _ in draws
        )

    def step(self, seqs: Sequence[Any], draws: Sequence[Any]) -> list[tuple[int, float]]:
        """Run one step and wait for it: `(token, logprob)` per sequence."""
        bucket = next(size for size in BUCKETS if size >= len(seqs))
        greedy = all(params.greedy for params, _, _ in draws)
        self._make_room(bucket)
        self._ready.record()  # behind what other steps and block copies have launched on the caller's stream
        with self._stream:
            self._stream.wait_event(self._ready)
            self.state.bring(self._wanted(seqs, draws, bucket, greedy), self._stream)
            self._launch(bucket, greedy)
            self.state.fetch("tokens", self._stream)
            self.state.fetch("logprobs", self._stream)
            self._done.record(self._stream)
        self._done.synchronize()
        self._move_on(bucket)
        tokens, logprobs = self.state.host["tokens"], self.state.host["logprobs"]
        return [(int(tokens[i]), float(logprobs[i])) for i in range(len(seqs))]

    def _make_room(self, bucket: int) -> None:
        if bucket not in self._warm:
            self.ops.warm_buffers(bucket)
            self._warm.add(bucket)
        if self.ops.generation != self._generation:  # buffers have moved, and graphs know them by their addresses
            self._recorded.clear()
            self._generation = self.ops.generation

    def _wanted(self, seqs: Sequence[Any], draws: Sequence[Any], bucket: int, greedy: bool) -> dict[str, np.ndarray]:
        """What the device must hold for this step, rows beyond the sequences being padding."""
        wanted = {name: np.zeros(bucket, dtype=I32) for name in ("positions", "lengths")}
        wanted["tokens"] = np.maximum(self.state.host["tokens"][:bucket], 0)  # padding: whatever is there, if it is one
        wanted["slots"] = np.full(bucket, -1, dtype=I32)
        wanted["tables"] = self.state.host["tables"][:bucket].copy()  # past a sequence's blocks nobody reads
        for i, seq in enumerate(seqs):
            wanted["tokens"][i], wanted["positions"][i], wanted["slots"][i] = seq.tokens[0], seq.start, seq.slots[0]
            wanted["lengths"][i] = seq.context
            wanted["tables"][i, : len(seq.block_table)] = seq.block_table
        return wanted if greedy else wanted | sampler_arrays(draws, bucket)

    def _launch(self, bucket: int, greedy: bool) -> None:
        key = (bucket, greedy)
        if not self.graphs or key not in self._seen:
            self._seen.add(key)
            self._kernels(bucket, greedy)
            return
        if key not in self._recorded:
            self._stream.begin_capture()
            try:
                self._kernels(bucket, greedy)
            finally:
                graph = self._stream.end_capture()
            self._recorded[key] = graph
        self._recorded[key].launch(stream=self._stream)

    def _kernels(self, bucket: int, greedy: bool) -> None:
        """The 10 L + 4 launches of a step."""
        state = {name: array[:bucket] for name, array in self.state.device.items()}
        logits = self.ops.decode_logits(self.weights, state["tokens"], self._step_of(state, bucket), self.store)
        choose(self.ops.kernels, logits, state, greedy, self.store.block_size)

    @staticmethod
    def _step_of(state: Mapping[str, Any], bucket: int) -> Step:
        spans = Spans(None, None, state["lengths"], state["tables"], 1)
        return Step(bucket, bucket, state["positions"], state["slots"], spans, None, True)

    def _move_on(self, bucket: int) -> None:
        """Note on the host what `advance` has done on the device."""
        host, size = self.state.host, self.store.block_size
        live = np.flatnonzero(host["slots"][:bucket] >= 0)
        position = host["positions"][live] + 1
        block = position // size
        within = block < self.width
        blocks = host["tables"][live, np.where(within, block, 0)]
        host["positions"][live], host["lengths"][live] = position, position + 1
        host["slots"][live] = np.where(within, blocks * size + position % size, -1)


class LooseSampler:
    """Tokens for rows of logits that do not belong to a decode step: after a prompt, or in a mixed step."""

    def __init__(self, kernels: Kernels, xp: Any) -> None:
        """Arrays come with the first call."""
        self._kernels, self._xp = kernels, xp
        self._state: Mirror | None = None

    def sample(self, logits: Any, draws: Sequence[Any]) -> list[tuple[int, float]]:
        """Choose a token from each row of `logits [R, V]` and wait for it: `(token, logprob)` per row."""
        rows = len(logits)
        if rows == 0:
            return []
        if self._state is None or len(self._state.host["tokens"]) < rows:
            self._state = Mirror(self._xp, rows, STATE_FIELDS | SAMPLER_FIELDS, 1)
        state, greedy = self._state, all(params.greedy for params, _, _ in draws)
        wanted = sampler_arrays(draws, rows)
        wanted["positions"] = np.array([position - 1 for _, _, position in draws], dtype=I32)
        wanted["slots"] = np.full(rows, -1, dtype=I32)  # nobody moves on: the scheduler decides who goes on
        stream = self._xp.cuda.get_current_stream()  # the one on which the logits are made
        state.bring(wanted, stream)
        choose(self._kernels, logits, {name: a[:rows] for name, a in state.device.items()}, greedy, 1)
        state.fetch("tokens", stream)
        state.fetch("logprobs", stream)
        stream.synchronize()
        return [(int(state.host["tokens"][i]), float(state.host["logprobs"][i])) for i in range(rows)]


def choose(kernels: Kernels, logits: Any, state: Mapping[str, Any], greedy: bool, block_size: int) -> None:
    """Launch the kernel that chooses one token per row of `logits` and moves the sequences on."""
    rows, vocab = logits.shape
    own = () if greedy else tuple(state[name] for name in SAMPLER_FIELDS)
    kernels(
        "argmax_advance" if greedy else "sample_advance", (rows,), 1024 if vocab > 4096 else 64,
        logits, *own, *(state[name] for name in STATE_FIELDS), state["tables"], vocab, block_size,
        state["tables"].shape[1],
    )  # fmt: skip


def sampler_arrays(draws: Sequence[Any], rows: int) -> dict[str, np.ndarray]:
    """What `sample_advance` reads for each row; rows without a draw, and greedy ones, get temperature 0."""
    arrays = {name: np.zeros(rows, dtype=dtype) for name, dtype in SAMPLER_FIELDS.items()}
    arrays["floors"][:] = OFF
    arrays["top_ps"][:] = 1.0
    for i, (params, seed, _) in enumerate(draws):
        arrays["temperatures"][i] = 0.0 if params.greedy else params.temperature
        arrays["floors"][i] = math.log(params.min_p) if params.min_p > 0 else OFF
        arrays["top_ks"][i] = min(max(0, params.top_k), 2**31 - 1)
        arrays["top_ps"][i] = params.top_p
        arrays["seeds"][i] = seed & MASK_64
    return arrays


def _page_locked(xp: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    count = math.prod(shape)
    memory = xp.cuda.alloc_pinned_memory(count * dtype.itemsize)
    array = np.frombuffer(memory, dtype=dtype, count=count).reshape(shape)
    array[...] = 0
    return array
