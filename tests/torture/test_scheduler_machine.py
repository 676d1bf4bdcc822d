"""The state machine again, for 200,000 engine steps, and a long soak with one engine that must not wear out."""

import random

import scheduler_machine
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from scheduling import World, make_request

SEARCH = settings(
    max_examples=1500, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)


def test_two_hundred_thousand_steps() -> None:
    scheduler_machine.steps_taken = 0
    while scheduler_machine.steps_taken < 200_000:
        run_state_machine_as_test(scheduler_machine.SchedulerMachine, settings=SEARCH)


def test_one_engine_for_ten_thousand_requests() -> None:
    """Nothing piles up: neither requests, nor siblings, nor blocks, nor registered prefixes."""
    rng = random.Random(11)
    world = World(16, 4, max_num_seqs=8, max_num_batched_tokens=24)
    scheduler = world.scheduler
    for i in range(10_000):
        prompt = [5, 6, 7, 8] * rng.randint(0, 6) + [rng.randrange(1000) for _ in range(rng.randint(1, 12))]
        world.add(make_request(f"r{i}", prompt, rng.randint(0, 16), n=rng.choice([1, 1, 3]), arrival=world.clock.now()))
        for _ in range(rng.randint(0, 6)):
            world.step()
        if rng.random() < 0.1:
            world.finish(f"r{rng.randint(0, i)}")
        if i % 50 == 0:
            world.finish_all()
            world.plans.clear()
            world.events.clear()
            world.asked.clear()
    world.finish_all()
    assert not scheduler.requests
    assert not scheduler.unborn
    assert not scheduler.waiting
    assert not scheduler.running
    assert scheduler.prefix_hits > 0
    assert scheduler.num_preemptions > 0
