"""Preempt goes last."""

FILE = "minifer/scheduler/continuous.py"
OLD = "insort(self.waiting, victim, key=by_rank)"
NEW = "self.waiting.append(victim)"
TASKS = ("7.5",)
HINT = "It was here before those who wait: put it where its rank says."
