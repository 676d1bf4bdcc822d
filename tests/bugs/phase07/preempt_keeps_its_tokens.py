"""Preempt keeps its tokens."""

FILE = "minifer/scheduler/continuous.py"
OLD = "draft.budget += len(draft.seqs.pop(victim.id).tokens)"
NEW = "draft.seqs.pop(victim.id)"
TASKS = ("7.5",)
HINT = "What the victim was to compute can now be computed by others."
