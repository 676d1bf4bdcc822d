"""The state machine of `scheduler_machine.py`, 20,000 engine steps of it in every run."""

import scheduler_machine
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

SEARCH = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)


def test_whatever_happens_the_books_balance_and_the_answers_are_right() -> None:
    scheduler_machine.steps_taken = 0
    while scheduler_machine.steps_taken < 20_000:
        run_state_machine_as_test(scheduler_machine.SchedulerMachine, settings=SEARCH)
