"""The KV cache of a recorded run, block by block and step by step: who holds a block, how full it is, what is wasted.

    history = History(trace)
    history.holds                 request 3 held block 17, as its block number 2, from step 5 to step 40
    history.idle                  block 17 was free and findable (prefix cache) from step 41 to step 60
    history.usage()               for every step: blocks held, shared, idle, blank; slots written and wasted
    history.at(12)                the whole map in step 12

A trace names a block table only when it changes, so a hold is the time between two changes. Which free blocks could
still be found by the next prompt is not written down; it follows from the rules of `kv_cache/prefix.py` (full blocks
are registered when their step is over, the first of two equal ones stands) and is worked out here from the token ids.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from minifer.apps.view.trace_model import Life, Trace, Work


class Hold(NamedTuple):
    """Block `block` stood at `place` in the table of `life`, from step `first` to step `last`, both included."""

    block: int
    life: int
    place: int
    first: int
    last: int


class Idle(NamedTuple):
    """Nobody held the block, but its tokens could be found by a prompt that begins alike."""

    block: int
    first: int
    last: int


class Usage(NamedTuple):
    """What the pool looked like while a step ran, in blocks; `written` and `wasted` are slots of held blocks.

    `shared` blocks stand in more than one table; `saved` is how many more blocks there would have to be without that.
    """

    held: int
    shared: int
    saved: int
    idle: int
    blank: int
    written: int
    wasted: int


@dataclass(slots=True)
class Cell:
    """One block in one step: the requests that hold it, how many of its slots are written, and whether it can be found
    although nobody holds it."""

    owners: list[int] = field(default_factory=list)
    used: int = 0
    idle: bool = False


class History:
    """Everything about the blocks of one trace. Making it costs a little for each change of a table."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.size = trace, trace.block_size
        self.holds: list[Hold] = [hold for life in trace.lives for hold in self._holds_of(life)]
        self.holds.sort(key=lambda hold: (hold.first, hold.life, hold.place))
        self.idle: list[Idle] = list(self._idle_times()) if trace.config.get("enable_prefix_caching") else []

    def _holds_of(self, life: Life) -> Iterator[Hold]:
        """A block of a table is held until the table that no longer has it at that place."""
        since: list[tuple[int, int]] = []  # by place: block, first step
        end = len(self.trace.steps) - 1
        for step, table in [*life.tables, (end + 1, ())]:
            same = 0
            while same < min(len(since), len(table)) and since[same][0] == table[same]:
                same += 1
            for place, (block, first) in enumerate(since[same:], start=same):
                if first < step:  # a table that was given back at once was never used
                    yield Hold(block, life.index, place, first, step - 1)
            since[same:] = [(block, step) for block in table[same:]]

    def used(self, place: int, computed: int) -> int:
        """Slots that are written in the block at `place`, when `computed` positions of the request are in the cache."""
        return max(0, min(computed - place * self.size, self.size))

    def at_start(self, hold: Hold) -> int:
        """Slots of the block that were written already when the hold began."""
        return self.used(hold.place, self.found(hold))

    # ---- free, and findable ----------------------------------------------------------------------------------------

    def _idle_times(self) -> Iterator[Idle]:
        """Follow the prefix cache: registered blocks that no table holds."""
        starts, ends, works = self._events()
        refs: dict[int, int] = defaultdict(int)
        keys = _Keys(self.size)
        since: dict[int, int] = {}
        for step in self.trace.steps:
            for hold in ends[step.index]:
                refs[hold.block] -= 1
                if not refs[hold.block] and hold.block in keys.key_of:
                    since[hold.block] = step.index
            for hold in starts[step.index]:
                if (first := since.pop(hold.block, None)) is not None:
                    if first < step.index:
                        yield Idle(hold.block, first, step.index - 1)
                    if hold.place * self.size >= self.found(hold):
                        keys.forget(hold.block)
                refs[hold.block] += 1
            for life, work, table in works[step.index]:
                keys.register(life, work, table)
        last = len(self.trace.steps) - 1
        yield from (Idle(block, first, last) for block, first in since.items())

    def _events(self) -> tuple[dict, dict, dict]:
        """Holds by the step in which they start and by the one after their end; work with the table it used."""
        starts, ends, works = defaultdict(list), defaultdict(list), defaultdict(list)
        for hold in self.holds:
            starts[hold.first].append(hold)
            ends[hold.last + 1].append(hold)
        for life in self.trace.lives:
            table: tuple[int, ...] = ()
            tables = iter([*life.tables, (len(self.trace.steps), ())])
            step, following = next(tables)
            for work in life.work:
                while step <= work.step:
                    table = following
                    step, following = next(tables)
                works[work.step].append((life, work, table))
        return starts, ends, works

    def found(self, hold: Hold) -> int:
        """Tokens of the request that were in the cache when the hold began: from its admission, or from a fork, which
        takes over every block except the one it copies in order to write."""
        life = self.trace.lives[hold.life]
        found = [tokens for step, tokens in life.admitted if step <= hold.first]
        if not found and life.work and life.work[0].step == hold.first:
            copied = any(hold.block == to for _, to in self.trace.steps[hold.first].copies)
            return 0 if copied else (hold.place + 1) * self.size
        return found[-1] if found else 0

    # ---- questions -------------------------------------------------------------------------------------------------

    def usage(self) -> list[Usage]:
        """One row for each step."""
        starts, ends, works = self._events()
        idle = [0] * (len(self.trace.steps) + 1)
        for free in self.idle:
            idle[free.first] += 1
            idle[free.last + 1] -= 1
        owners: dict[int, dict[int, int]] = defaultdict(dict)  # block -> life -> slots written
        rows: list[Usage] = []
        written = tables = shared = findable = 0
        for step in self.trace.steps:
            touched = {hold.block for hold in (*starts[step.index], *ends[step.index])}
            cells = {(table[place], life.index): self.used(place, work.computed)
                     for life, work, table in works[step.index] for place in self._places(work, table)}  # fmt: skip
            touched |= {block for block, _ in cells}
            written -= sum(max(owners[block].values(), default=0) for block in touched)
            shared -= sum(len(owners[block]) > 1 for block in touched)
            for hold in ends[step.index]:
                owners[hold.block].pop(hold.life, None)
                tables -= 1
            for hold in starts[step.index]:
                owners[hold.block][hold.life] = self.at_start(hold)
                tables += 1
            for (block, life_index), used in cells.items():
                owners[block][life_index] = used
            written += sum(max(owners[block].values(), default=0) for block in touched)
            shared += sum(len(owners[block]) > 1 for block in touched)
            for block in touched:
                if not owners[block]:
                    del owners[block]
            findable += idle[step.index]
            held = len(owners)
            blank = max(0, self.trace.num_blocks - held - findable)
            rows.append(Usage(held, shared, tables - held, findable, blank, written, held * self.size - written))
        return rows

    def _places(self, work: Work, table: tuple[int, ...]) -> range:
        """The places in a table that a piece of work wrote into."""
        return range(work.first // self.size, min(len(table), -(-work.computed // self.size)))

    def at(self, index: int) -> dict[int, Cell]:
        """The blocks that are not blank while step `index` runs, with what is in them when it ends."""
        cells: dict[int, Cell] = {}
        for hold in self.holds:
            if hold.first <= index <= hold.last:
                life = self.trace.lives[hold.life]
                cell = cells.setdefault(hold.block, Cell())
                cell.owners.append(hold.life)
                cell.used = max(cell.used, self.used(hold.place, computed_at(life, index)))
        for free in self.idle:
            if free.first <= index <= free.last:
                cells[free.block] = Cell(used=self.size, idle=True)
        return cells


def computed_at(life: Life, step: int) -> int:
    """Positions of a request that are in the cache when step `step` is over: the end of its last work, or what its
    admission found if it has not worked since."""
    work = life.work[bisect_right(life.work, step, key=lambda work: work.step) - 1 :][:1]
    admission = next((admission for admission in reversed(life.admitted) if admission[0] <= step), (-1, 0))
    if not work or not admission[0] <= work[0].step <= step:
        return admission[1]
    return work[0].computed


class _Keys:
    """The prefix cache's table, with nested tuples in place of digests: a block is its tokens and those before it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.key_of: dict[int, int] = {}
        self._block_of: dict[int, int] = {}
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}  # (number of the parent, ids) -> number
        self._chains: dict[int, list[int]] = defaultdict(list)

    def register(self, life: Life, work: Work, table: tuple[int, ...]) -> None:
        """The blocks that became full with this work can be found from now on, unless equal ones can already."""
        full = min(work.computed // self.size, len(table))
        ids, chain = _ids(life, full * self.size), self._chains[life.index]
        for place in range(len(chain), full):
            tokens = tuple(ids[place * self.size : (place + 1) * self.size])
            whole = (chain[-1] if chain else -1, tokens)
            chain.append(self._numbers.setdefault(whole, len(self._numbers)))
        for place in range(work.first // self.size, full):
            key, block = chain[place], table[place]
            if key not in self._block_of and block not in self.key_of:
                self._block_of[key], self.key_of[block] = block, key

    def forget(self, block: int) -> None:
        """The pool needed the block for something else."""
        del self._block_of[self.key_of.pop(block)]


def _ids(life: Life, count: int) -> list[int]:
    """The first `count` ids of prompt and answer together."""
    return [*life.prompt[:count], *life.token_ids[: max(0, count - len(life.prompt))]]
