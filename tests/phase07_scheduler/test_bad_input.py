"""What goes wrong must go wrong for as few as possible, at once, and with a message that helps."""

from typing import Any

import pytest
from scheduling import World, check_books, make_request

from minifer.errors import CapacityError, InvariantError, RequestError, UsageError
from minifer.limits import EngineConfig
from minifer.scheduler.plan import SeqResult, StepPlan, StepResult


@pytest.mark.parametrize(
    ("limits", "numbers"),
    [
        ({"num_blocks": 0}, ["num_blocks", "0"]),
        ({"block_size": 0}, ["block_size", "0"]),
        ({"block_size": 2.5}, ["block_size", "2.5"]),
        ({"max_num_seqs": -1}, ["max_num_seqs", "-1"]),
        ({"max_num_batched_tokens": 0}, ["max_num_batched_tokens", "0"]),
        ({"max_model_len": True}, ["max_model_len", "True"]),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 32}, ["max_num_seqs=64", "max_num_batched_tokens=32"]),
        ({"max_model_len": 65}, ["65", "64"]),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 63}, ["63", "64"]),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 31, "max_model_len": 32}, ["31", "32"]),
    ],
)
def test_contradictory_limits_are_refused_with_the_numbers(limits: dict, numbers: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        EngineConfig(**{"num_blocks": 16, "block_size": 4, **limits})
    assert all(number in str(caught.value) for number in numbers)


def test_without_chunks_a_prompt_runs_in_one_step() -> None:
    world = World(32, 4, enable_chunked_prefill=False, max_num_batched_tokens=32, max_num_seqs=4, max_model_len=24)
    world.add(*[make_request(f"r{i}", 12, 6) for i in range(4)])
    plans = world.finish_all()
    assert plans[0].refused == (("r2", "tokens to compute: 12, left in this step: 8"),)
    prefills = [seq for plan in plans for seq in plan.seqs if seq.phase == "prefill"]
    assert all(seq.samples for seq in prefills)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "limits", "numbers"),
    [
        (17, 1, {}, ["5 KV blocks", "pool has 4"]),
        (1, 17, {}, ["5 KV blocks", "pool has 4"]),
        (16, 2, {}, ["5 KV blocks", "pool has 4"]),
        (10, 3, {"max_model_len": 12}, ["13", "12"]),
        (12, None, {"max_model_len": 12}, ["13", "12"]),
        (17, None, {}, ["5 KV blocks", "pool has 4"]),
    ],
)
def test_what_can_never_fit_is_refused_at_once(prompt: int, max_tokens: Any, limits: dict, numbers: list[str]) -> None:
    world = World(4, 4, **limits)
    with pytest.raises(CapacityError) as caught:
        world.engine.add(make_request("r", prompt, max_tokens))
    assert all(number in str(caught.value) for number in numbers)
    assert not world.engine.has_work


@pytest.mark.parametrize(("prompt", "max_tokens"), [(16, 1), (1, 16), (15, 2), (16, 0)])
def test_what_just_fits_runs(prompt: int, max_tokens: int) -> None:
    world = World(4, 4)
    world.add(make_request("r", prompt, max_tokens))
    world.finish_all()


def test_an_empty_prompt_and_a_used_id_are_refused() -> None:
    world = World()
    with pytest.raises(RequestError, match="empty"):
        world.engine.add(make_request("r", [], 4))
    world.add(make_request("r", 3, 4, n=2))
    for name in ("r", "r.1"):
        with pytest.raises(RequestError, match=r"another id"):
            world.engine.add(make_request(name, 3, 4))
    world.finish_all()
    again = World()
    again.add(make_request("r", 3, 4))
    again.finish_all()
    again.add(make_request("r", 4, 4))  # a finished id may be used again
    assert again.engine.run()


def test_an_abort_of_nobody_is_a_no_op() -> None:
    world = World()
    assert world.engine.abort("nobody") == []
    request = make_request("r", 3, 2)
    world.add(request)
    world.finish_all()
    assert world.engine.abort("r") == []
    assert request.finish_reason == "length"


@pytest.mark.parametrize("steps", range(6))
def test_an_abort_in_any_state_gives_every_block_back(steps: int) -> None:
    world = World(16, 4, max_num_seqs=2, max_num_batched_tokens=8)
    world.add(make_request("a", 20, 4), make_request("b", 3, 4, n=3), make_request("c", 5, 4))
    for _ in range(steps):
        world.step()
    for name in ("a", "b", "b.1", "b.2", "c"):
        world.finish(name)
    assert not world.engine.has_work
    assert world.scheduler.pool.num_free == 16
    assert {request.finish_reason for request in world.asked} <= {"abort", "length"}


def test_an_abort_before_the_fork_takes_the_unborn_with_it() -> None:
    world = World(max_num_batched_tokens=8)
    world.add(make_request("a", 20, 4, n=3))
    world.step()
    events = world.engine.abort("a")
    assert [(e.request_id, e.finish_reason) for e in events] == [("a", "abort"), ("a.1", "abort"), ("a.2", "abort")]
    assert not world.engine.has_work


def test_one_unborn_sibling_may_be_aborted_alone() -> None:
    world = World(16, 4, max_num_batched_tokens=8)
    world.add(make_request("a", 20, 4, n=3))
    world.step()
    world.finish("a.1")
    world.finish_all()
    assert [r.finish_reason for r in world.asked] == ["length", "abort", "length"]


class Faulty(World):
    """A world whose executor spoils one step: `fault(result)` returns another result, or raises."""

    at_step = 3

    def fault(self, result: StepResult) -> StepResult:
        """What becomes of the result of step `at_step`."""
        raise NotImplementedError

    def run(self, plan: StepPlan, requests: Any) -> StepResult:
        """Run honestly, then spoil it."""
        result = super().run(plan, requests)
        return self.fault(result) if plan.step == self.at_step else result


def replaced(result: StepResult, name: str, other: SeqResult) -> StepResult:
    return StepResult(tuple(other if r.request_id == name else r for r in result.results))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda r: replaced(r, "b", SeqResult("b", error="logits are NaN")), "logits are NaN"),
        (lambda r: replaced(r, "b", SeqResult("b", 5, float("nan"))), "NaN"),
        (lambda r: replaced(r, "b", SeqResult("b")), "no token"),
        (lambda r: StepResult(tuple(x for x in r.results if x.request_id != "b")), "no token"),
    ],
)
def test_a_bad_sequence_ends_its_request_and_no_other(spoil: Any, says: str) -> None:
    world = Faulty(16, 4)
    world.fault = spoil
    world.add(*[make_request(name, 5, 6) for name in "abc"])
    world.finish_all()
    assert [r.finish_reason for r in world.asked] == ["length", "error", "length"]
    assert says in str(world.asked[1].error)
    assert len(world.asked[1].output_ids) == 2
    assert [e.error for e in world.events if e.request_id == "b" and e.finish_reason] == [world.asked[1].error]


def test_a_chunk_may_fail_too() -> None:
    world = Faulty(16, 4, max_num_batched_tokens=8)
    world.fault = lambda _: StepResult((SeqResult("a", error="overflow"),))
    world.at_step = 1
    world.add(make_request("a", 20, 4, n=2), make_request("b", 3, 2))
    world.finish_all()
    assert [r.finish_reason for r in world.asked] == ["error", "error", "length"]


def test_an_executor_that_raises_fails_its_plan_and_nobody_else() -> None:
    def explode(result: StepResult) -> StepResult:
        raise MemoryError("out of memory")

    world = Faulty(16, 4, max_num_seqs=2)
    world.fault = explode
    world.add(*[make_request(name, 5, 6) for name in "abcd"])
    world.finish_all()
    assert [r.finish_reason for r in world.asked] == ["error", "error", "length", "length"]
    assert world.asked[0].error == "MemoryError: out of memory"


def test_ctrl_c_leaves_the_books_in_order() -> None:
    def interrupt(result: StepResult) -> StepResult:
        raise KeyboardInterrupt

    world = Faulty(16, 4)
    world.fault = interrupt
    world.add(make_request("a", 5, 6))
    with pytest.raises(KeyboardInterrupt):
        world.engine.run()
    check_books(world.scheduler)
    assert world.scheduler.pool.num_free == 16
    world.add(b := make_request("b", 5, 6))
    world.engine.run()
    assert b.finish_reason == "length"


@pytest.mark.parametrize("named_again", [True, False])
def test_an_abort_while_the_step_runs_wins(named_again: bool) -> None:
    class Impatient(World):
        def run(self, plan: StepPlan, requests: Any) -> StepResult:
            """Abort "a" in the middle of step 2, and maybe let another take its name."""
            if plan.step == 2:
                self.engine.abort("a")
                if named_again:
                    self.add(make_request("a", 7, 3))
            return super().run(plan, requests)

    world = Impatient(16, 4)
    first = make_request("a", 5, 6)
    world.add(first, make_request("b", 5, 6))
    world.engine.run()
    check_books(world.scheduler)
    assert (first.finish_reason, len(first.output_ids)) == ("abort", 1)
    assert [len(r.output_ids) for r in world.asked] == [1, 6, 3][: 2 + named_again]


def test_a_plan_has_to_be_committed_once() -> None:
    world = World()
    world.add(make_request("a", 5, 6))
    plan = world.scheduler.step(0.0)
    with pytest.raises(InvariantError, match="not been committed"):
        world.scheduler.step(0.0)
    result = world.executor.run(plan, world.scheduler.requests)
    world.scheduler.commit(plan, result, 1.0)
    with pytest.raises(InvariantError, match="waits for its commit"):
        world.scheduler.commit(plan, result, 1.0)
