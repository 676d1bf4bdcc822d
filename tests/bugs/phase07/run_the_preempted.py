"""Run the preempted."""

FILE = "minifer/scheduler/continuous.py"
OLD = "if count and request.state is State.RUNNING and"
NEW = "if count and"
TASKS = ("7.3",)
HINT = "Who was preempted for another one has no blocks any more."
