"""The ranks of the CPU room: processes that share memory and meet by counters.

Rank 0 is the process that the user started; `Peer` is how it sees each of the others. What they share is a `Board`
(the description of a step, its activations) and the KV caches (`SharedStore`), all in memory files without a name.
A message between processes costs tens of microseconds and a step has 150 meetings, so none is sent while a step runs:
`Meeting` watches counters instead. What a rank computes is in `cpu.py`.
"""

import contextlib
import mmap
import os
import pickle
import platform
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from minifer.errors import DeviceError, UsageError
from minifer.kv_cache.store import KVStore
from minifer.ops.batch import Batch, Span

if TYPE_CHECKING:
    from minifer.model.config import ModelConfig

MAX_ROWS = 8192
"""Most tokens of one step."""

RANK_BYTES = 2 << 20
"""Least weights of a layer that are worth a rank. Reading them takes 0.13 ms, five meetings about 0.03 ms; a layer of
`tiny`, with 0.4 MB, is several times slower on two ranks than on one."""


def share(total: int, ranks: int, rank: int) -> slice:
    """The part of `total` things that belongs to `rank`, as even as it goes.

    >>> [share(15, 2, rank) for rank in range(2)]
    [slice(0, 8, None), slice(8, 15, None)]
    """
    small, extra = divmod(total, ranks)
    start = rank * small + min(rank, extra)
    return slice(start, start + small + (rank < extra))


def most_ranks() -> int:
    """How many ranks this machine is good for: one per core that this process may use, or 1 (see the docstring)."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return 1
    return min(len(os.sched_getaffinity(0)), 16)


def number_of_ranks(threads: int | None, config: "ModelConfig") -> int:
    """How many ranks there will be: as many as asked for, else one for each `RANK_BYTES` that a layer reads.

    Raises UsageError for a number of threads below one.
    """
    if threads is not None and threads < 1:
        raise UsageError(f"threads must be at least 1, not {threads}")
    most, c = most_ranks(), config
    if most == 1:
        return 1
    heads = (2 * c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim
    layer_bytes = 4 * c.hidden_size * (heads + 3 * c.intermediate_size)
    return min(threads or max(1, min(most, layer_bytes // RANK_BYTES)), c.num_attention_heads)


class Board:
    """The memory that all ranks of a model see: counters to meet by, the description of a step, activations.

    The file behind it is sparse: room for a step of `max_rows` is reserved, and only what is used is taken.
    """

    STEP_WORDS = 1 << 20

    def __init__(self, file: int, config: "ModelConfig", ranks: int) -> None:
        """Map the open file descriptor `file`, which is made large enough."""
        c, rows = config, max_rows(config)
        q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        widths = (c.hidden_size, q + 2 * kv, q, c.intermediate_size, c.vocab_size)
        flag_words = 8 * (ranks + 2)  # one cache line for each rank's counter
        words = flag_words + self.STEP_WORDS
        memory = shared_memory(file, 8 * words + 4 * rows * sum(widths))
        self.flags = memoryview(memory)[: 8 * flag_words].cast("q")
        self.step = np.frombuffer(memory, np.int64, self.STEP_WORDS, 8 * flag_words)
        starts = [8 * words + 4 * rows * sum(widths[:i]) for i in range(len(widths))]
        arrays = [
            np.frombuffer(memory, np.float32, rows * width, start).reshape(rows, width)
            for width, start in zip(widths, starts, strict=True)
        ]
        self.x, self.qkv, self.attended, self.gated, self.logits = arrays

    def describe(self, batch: Batch, store_id: int) -> None:
        """Write down a step for the other ranks, as whole numbers."""
        spans = [(s.start, s.length, s.context, len(s.block_table), *s.block_table) for s in batch.spans]
        head = [store_id, batch.num_tokens, len(batch.logit_rows), len(spans)]
        words = [*head, *batch.positions.tolist(), *batch.slots.tolist(), *batch.logit_rows.tolist()]
        for span in spans:
            words += span
        if len(words) > self.STEP_WORDS:
            raise UsageError(f"a step of {len(spans)} sequences with {len(words)} numbers is too large to describe")
        self.step[: len(words)] = words

    def read(self) -> tuple[int, Batch]:
        """The store's id and the batch (without tokens, which only the first rank needs) as `describe` wrote them."""
        words = self.step
        store_id, rows, wanted, count = words[:4].tolist()
        at = 4 + 2 * rows + wanted
        positions, slots, logit_rows = np.split(words[4:at].copy(), [rows, 2 * rows])
        spans = []
        for _ in range(count):
            start, length, context, blocks = words[at : at + 4].tolist()
            spans.append(Span(start, length, context, tuple(words[at + 4 : at + 4 + blocks].tolist())))
            at += 4 + blocks
        return store_id, Batch(None, positions, slots, tuple(spans), logit_rows)


def max_rows(config: "ModelConfig") -> int:
    """Most tokens of one step: no more than the context, nor than `MAX_ROWS`."""
    return min(config.max_position_embeddings, MAX_ROWS)


def shared_memory(file: int, size: int) -> mmap.mmap:
    """Map `size` bytes of an open file; every process that has the file sees the same bytes.

    subtle: the file is made longer, never shorter. A rank that maps a store late must not cut off what others wrote.
    """
    if file >= 0 and os.fstat(file).st_size < size:
        os.ftruncate(file, size)
    return mmap.mmap(file, size)


def anonymous_file() -> int:
    """A file without a name, in memory; -1, which maps to memory of one process, where there is only one."""
    return os.memfd_create("minifer") if sys.platform == "linux" else -1


def close_file(file: int) -> None:
    """Close an `anonymous_file`; what was mapped stays."""
    if file >= 0:
        os.close(file)


def asleep_flag(rank: int) -> int:
    """Where on the board a rank notes that it has gone to sleep: beside its counter."""
    return 8 * (rank + 2) + 1


class StepAbandonedError(Exception):
    """The first rank has begun another step (Ctrl-C broke the last one off): forget this one."""


class Meeting:
    """Where ranks wait for each other, by watching counters.

    A counter is `step * 2^20 + meetings so far`. Each rank writes its own and reads the others': no lock, no system
    call while everybody is on time. x86-64 keeps stores in order, so whoever sees the counter sees the data too.
    """

    def __init__(self, flags: memoryview, ranks: int, rank: int, alive: Callable[[], None]) -> None:
        """`alive` is called when a wait takes long; it raises if another rank is gone."""
        self._flags, self._mine, self._alive = flags, 8 * (rank + 2), alive
        self._others = tuple(8 * (other + 2) for other in range(ranks) if other != rank)
        self._now = self._yields = 0

    def begin(self, step: int) -> None:
        """Start counting for a new step."""
        self._now = step << 20

    def meet(self) -> None:
        """Return when every rank has arrived here."""
        flags, now = self._flags, self._now + 1
        self._now = flags[self._mine] = now
        for other in self._others:
            if flags[other] < now:
                self._wait(other, now)

    def _wait(self, other: int, now: int) -> None:
        flags = self._flags
        for _ in range(2000):
            if flags[other] >= now:
                return
        while flags[other] < now:
            if flags[0] != now >> 20:
                raise StepAbandonedError
            os.sched_yield()  # more ranks than free cores: let the other one have this one
            self._yields += 1
            if self._yields % 20_000 == 0:
                self._alive()


class Arena:
    """One piece of memory for all weights of a rank, in the order in which a step reads them.

    A large piece gets 2 MiB pages from the operating system, and small arrays would not: fewer page table walks.
    """

    def __init__(self, floats: int) -> None:
        """Room for `floats` numbers."""
        self._memory, self._used = np.empty(floats, np.float32), 0

    def keep(self, array: np.ndarray) -> np.ndarray:
        """A copy of `array` in here; it starts on a cache line."""
        start, self._used = self._used, self._used + padded(array.size)
        view = self._memory[start : start + array.size].reshape(array.shape)
        view[:] = array
        return view


def padded(floats: int) -> int:
    """So many numbers rounded up to whole cache lines of 64 bytes."""
    return -(-floats // 16) * 16


class SharedStore(KVStore):
    """A KV cache in a file without a name that other processes can map."""

    _count = 0

    def __init__(self, *sizes: int, poison: bool = False, file: int | None = None, identity: int | None = None) -> None:
        """A new cache, or with `file` and `identity` another process's view of one."""
        created = file is None
        self.file = anonymous_file() if file is None else file
        SharedStore._count += created
        self.identity = SharedStore._count if identity is None else identity
        self._taken = 0
        super().__init__(*sizes, allocate=self._allocate, poison=poison)
        weakref.finalize(self, close_file, self.file)

    def _allocate(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """The next piece of the file. Rows whose length is a power of two would all fall into the same places of the
        cache: they get some slots more, which nobody uses."""
        extra = self.block_size if self.block_size < 512 else 16
        shape = (*shape[:-1], shape[-1] + extra) if shape[-1] % 512 == 0 else shape
        start, size = self._taken, int(np.prod(shape))
        self._taken += size * np.dtype(dtype).itemsize
        return np.frombuffer(shared_memory(self.file, self._taken), dtype, size, start).reshape(shape)


class Peer:
    """Another rank's process, as rank 0 sees it."""

    def __init__(
        self,
        config: "ModelConfig",
        ranks: int,
        rank: int,
        board: int,
        program: str,
        row_by_row: bool,
        frequencies: np.ndarray,
    ) -> None:
        """Start the process, which runs the module `program`. It gets the board's file, one end of a socket for
        messages, and a pipe for weights."""
        self.rank = rank
        self._asleep = asleep_flag(rank)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", program, str(board), str(theirs.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=(board, theirs.fileno()),
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        )
        theirs.close()
        self._send((config, ranks, rank, row_by_row, frequencies))

    @property
    def _pipe(self) -> BinaryIO:
        assert self._process.stdin is not None
        return self._process.stdin  # type: ignore[return-value]

    def _send(self, value: Any) -> None:
        try:
            pickle.dump(value, self._pipe)
            self._pipe.flush()
        except BrokenPipeError:
            self.check()

    def send_weights(self, shards: Iterator[Any], head: np.ndarray) -> None:
        """Hand over the layers' shards and the head, one at a time."""
        for one in shards:
            self._send(one)
        self._send(head)

    def send_store(self, store: SharedStore, sizes: Sequence[int]) -> None:
        """Make a cache known to the process, and forgotten there when it is dropped here."""
        message = pickle.dumps(("store", store.identity, sizes))
        try:
            socket.send_fds(self._socket, [message], [store.file])
        except OSError:
            self._process.wait(timeout=1)
            self.check()
            raise
        weakref.finalize(store, _tell, self._socket, ("drop", store.identity))

    def wake(self, flags: memoryview) -> None:
        """Call the process to work if it has gone to sleep."""
        if flags[self._asleep]:
            flags[self._asleep] = 0
            _tell(self._socket, ("wake",))

    def check(self) -> None:
        """Raise DeviceError if the process has ended."""
        if self._process.poll() is not None:
            raise DeviceError(
                f"worker process {self.rank} of the CPU room has ended with code {self._process.returncode}: "
                f"load the model again, or use one thread"
            )

    def close(self) -> None:
        """Closing the socket tells the process to end; it is killed if it doesn't."""
        self._socket.close()
        try:
            self._pipe.close()
            self._process.wait(timeout=1)
        except (subprocess.TimeoutExpired, OSError):
            self._process.kill()
            self._process.wait()


def _tell(sock: socket.socket, message: tuple[Any, ...]) -> None:
    with contextlib.suppress(OSError):  # the other side is gone, and whoever waits for it will find out
        sock.send(pickle.dumps(message))


def check_all(peers: list[Peer]) -> None:
    """Raise DeviceError if any of the processes has ended."""
    for peer in peers:
        peer.check()


def close_all(peers: list[Peer], limits: Any) -> None:
    """End the processes, and lift the limit on BLAS threads if there was one."""
    for peer in peers:
        peer.close()
    if limits is not None:
        limits.restore_original_limits()
