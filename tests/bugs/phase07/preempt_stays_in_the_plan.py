"""Preempt stays in the plan."""

FILE = "minifer/scheduler/continuous.py"
OLD = "            draft.budget += len(draft.seqs.pop(victim.id).tokens)\n"
NEW = "            pass\n"
TASKS = ("7.5",)
HINT = "Its blocks are gone: it cannot run in this step."
