"""The lab tasks of phase 07: stamps by hand, and each decision of the scheduler alone, over a pool that only counts."""

from types import SimpleNamespace

import numpy as np
import pytest

from minifer.limits import EngineConfig
from minifer.metrics import from_stamps, percentile
from minifer.scheduler.continuous import ContinuousScheduler, _Draft
from minifer.scheduler.request import Request, State


class CountingPool:
    """A pool of free numbers: what the scheduler asks of a pool, without any cleverness."""

    block_size = 4

    def __init__(self, num_free=20):
        self.blocks, self.hit = list(range(num_free)), ()

    @property
    def num_free(self):
        return len(self.blocks)

    def blocks_for(self, n):
        return -(-n // 4)

    def slots(self, table, start, stop):
        return tuple(table[p // 4] * 4 + p % 4 for p in range(start, stop))

    def is_shared(self, block):  # noqa: ARG002
        return False

    def allocate(self, count, hit=()):
        return (*hit, *(self.blocks.pop(0) for _ in range(count)))

    def grow(self, table):
        return (*table, self.blocks.pop(0))

    def room_beside(self, hit=()):
        return len(self.blocks) - len(hit)

    def find(self, chain, token_ids):  # noqa: ARG002
        return self.hit

    def free(self, table):
        self.blocks += table


def world(num_free=20, budget=16, seats=8):
    """A scheduler on a counting pool, with a step of `budget` tokens begun."""
    scheduler = ContinuousScheduler(EngineConfig(20, 4, seats, max(budget, seats)))
    scheduler.pool = CountingPool(num_free)
    scheduler._draft = _Draft(budget, 2.5)
    return scheduler


def request(scheduler, name, prompt, max_tokens=9):
    """A request that the scheduler knows and that waits."""
    params = SimpleNamespace(n=1, max_tokens=max_tokens, ignore_eos=False, stop_token_ids=())
    made = Request(name, tuple(range(prompt)), params, arrival=float(len(scheduler.requests)))
    scheduler.add(made)
    return made


def running(scheduler, name, prompt, computed=0, output=0):
    """A request that has a place and blocks for all it knows."""
    made = request(scheduler, name, prompt)
    scheduler.waiting.remove(made)
    scheduler.running.append(made)
    made.state = State.RUNNING
    made.output_ids = [7] * output
    made.token_ids += made.output_ids
    made.block_table = scheduler.pool.allocate(scheduler.pool.blocks_for(len(made.token_ids)))
    made.num_computed = computed
    return made


@pytest.mark.task("7.1")
def test_stamps_by_hand(rng):
    """The first token has no gap; TPOT is over the gaps."""
    sent = float(rng.integers(1, 9))
    metrics = from_stamps(sent, [sent + 0.5, sent + 0.75, sent + 1.5, sent + 2.0], 4)
    assert (metrics.ttft, metrics.itl, metrics.tpot, metrics.e2e) == (0.5, (0.25, 0.75, 0.5), 0.5, 2.0)
    assert metrics.output_tokens == 4


@pytest.mark.task("7.1")
def test_tpot_counts_tokens_and_not_stamps():
    """A server may send two tokens at once: three stamps, five tokens."""
    metrics = from_stamps(0.0, [1.0, 2.0, 5.0], 5)
    assert metrics.tpot == 1.0
    assert metrics.itl == (1.0, 3.0)


@pytest.mark.task("7.1")
def test_what_is_undefined_is_none():
    """One token has no gap and no TPOT; no token has nothing at all."""
    one, none = from_stamps(1.0, [1.5], 1), from_stamps(1.0, [], 0)
    assert (one.ttft, one.itl, one.tpot, one.e2e) == (0.5, (), None, 0.5)
    assert (none.ttft, none.itl, none.tpot, none.e2e, none.output_tokens) == (None, (), None, None, 0)


@pytest.mark.task("7.2")
def test_percentile_is_numpys(rng):
    """Unsorted values, any percent."""
    values = rng.normal(size=11).tolist()
    for percent in (0, 3, 50, 90, 99.5, 100):
        assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)))


@pytest.mark.task("7.2")
def test_percentile_by_hand():
    """p90 of five values is 0.6 of the way from the fourth to the fifth; no values: None; the list stays as it was."""
    values = [40, 10, 30, 20, 1000]
    assert [percentile(values, p) for p in (50, 90, 95)] == pytest.approx([30.0, 616.0, 808.0])
    assert values == [40, 10, 30, 20, 1000]
    assert percentile([], 50) is None
    assert percentile([3.0], 99) == 3.0


@pytest.mark.task("7.3")
def test_run_spends_the_budget_in_order():
    """Two decodes and two prompts with 8 tokens: the last prompt gets what is left."""
    scheduler = world(budget=8)
    asked = [running(scheduler, "a", 3, 3, 1), running(scheduler, "b", 5, 5, 1), running(scheduler, "c", 9, 4)]
    asked += [running(scheduler, "d", 6), running(scheduler, "e", 3)]
    scheduler._run(asked)
    assert {name: len(seq.tokens) for name, seq in scheduler._draft.seqs.items()} == {"a": 1, "b": 1, "c": 5, "d": 1}
    assert scheduler._draft.budget == 0


@pytest.mark.task("7.3")
def test_run_passes_over_who_lost_his_place():
    """A preemption for `a` takes `b`; and `c` finds no room for itself."""
    scheduler = world()
    a, b, c, d = (running(scheduler, name, 3, 3, 1) for name in "abcd")

    def make_room(asking):
        if asking is a:
            b.state = State.PREEMPTED
        return asking is not c

    scheduler._make_room = make_room
    scheduler._run([a, b, c, d])
    assert list(scheduler._draft.seqs) == ["a", "d"]
    assert scheduler._draft.budget == 14


@pytest.mark.task("7.3")
def test_run_asks_for_no_room_without_budget():
    """Room for a request that gets no token could cost another one its place."""
    scheduler = world(budget=8)
    first, second = running(scheduler, "a", 8), running(scheduler, "b", 3)
    asked = []
    scheduler._make_room = lambda r: asked.append(r.id) or True
    scheduler._run([first, second])
    assert asked == ["a"]


@pytest.mark.task("7.4")
def test_seats_come_first():
    """All taken: nothing else matters."""
    scheduler = world(num_free=9, seats=2)
    running(scheduler, "a", 3)
    one = request(scheduler, "r", 9)
    assert scheduler._why_not(one, 16, False) == ("", ())
    running(scheduler, "b", 3)
    why, hit = scheduler._why_not(one, 0, True)
    assert "2 seats" in why
    assert hit == ()


@pytest.mark.task("7.4")
def test_blocks_and_one_to_grow_into():
    """Eight tokens in blocks of four, growing: three blocks must be free, though two are taken."""
    for free, fits in ((2, False), (3, True)):
        scheduler = world(num_free=free)
        why, _ = scheduler._why_not(request(scheduler, "r", 8), 16, False)
        assert (why == "") is fits
        if why:
            assert "blocks needed: 3, free: 2" in why
    scheduler = world(num_free=2)
    assert scheduler._why_not(request(scheduler, "r", 8, max_tokens=1), 16, False) == ("", ())


@pytest.mark.task("7.4")
def test_found_blocks_are_not_needed_again():
    """Two of four blocks found, idle: two more needed, and the found ones are not free beside themselves."""
    for free, fits in ((3, False), (4, True)):
        scheduler = world(num_free=free)
        scheduler.pool.hit = (0, 1)
        why, hit = scheduler._why_not(request(scheduler, "r", 12), 4, True)
        assert (why == "") is fits
        assert hit == ((0, 1) if fits else ())


@pytest.mark.task("7.4")
def test_tokens_whole_or_in_chunks():
    """A prompt of 9 of which 4 are found: 5 must fit if it is to be whole, else one is enough."""
    scheduler = world()
    scheduler.pool.hit = (3,)
    one = request(scheduler, "r", 9)
    assert scheduler._why_not(one, 5, True) == ("", (3,))
    assert "tokens to compute: 5, left in this step: 4" in scheduler._why_not(one, 4, True)[0]
    assert scheduler._why_not(one, 1, False) == ("", (3,))
    assert "left in this step: 0" in scheduler._why_not(one, 0, False)[0]


@pytest.mark.task("7.5")
def test_the_victim_gives_everything_back():
    """Blocks and place; it waits where its rank says, and its answer so far is kept."""
    scheduler = world(num_free=9)
    running(scheduler, "a", 3, 3, 1)
    victim = running(scheduler, "b", 6, 6, 2)
    request(scheduler, "c", 3)
    assert scheduler._preempt("a needed a block") is victim
    assert victim.state is State.PREEMPTED
    assert (victim.block_table, victim.num_computed, victim.output_ids) == ((), 0, [7, 7])
    assert [r.id for r in scheduler.waiting] == ["b", "c"]
    assert [r.id for r in scheduler.running] == ["a"]
    assert scheduler.pool.num_free == 8


@pytest.mark.task("7.5")
def test_the_plan_forgets_the_victim():
    """What it was to do is taken out, its tokens and its copy too; the reason is noted, and both counters rise."""
    scheduler = world(num_free=9, budget=10)
    kept, victim = running(scheduler, "a", 3), running(scheduler, "b", 5)
    scheduler._schedule(kept, 3)
    scheduler._schedule(victim, 5)
    scheduler._draft.copies["b"] = (1, 2)
    scheduler._preempt("why")
    draft = scheduler._draft
    assert (list(draft.seqs), draft.budget, draft.copies, draft.preempted) == (["a"], 7, {}, [("b", "why")])
    assert (victim.num_preemptions, scheduler.num_preemptions) == (1, 1)


@pytest.mark.task("7.5")
def test_the_policy_chooses_the_victim():
    """`victim` is a function that was handed in."""
    scheduler = world(num_free=9)
    oldest = running(scheduler, "a", 3, 3, 1)
    running(scheduler, "b", 3, 3, 1)
    scheduler.victim = lambda candidates: candidates[0]
    budget = scheduler._draft.budget
    assert scheduler._preempt("why") is oldest
    assert scheduler._draft.budget == budget
