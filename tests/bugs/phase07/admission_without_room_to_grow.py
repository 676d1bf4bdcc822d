"""Admission without room to grow."""

FILE = "minifer/scheduler/continuous.py"
OLD = "self._blocks(request)[1] - len(hit)"
NEW = "self._blocks(request)[0] - len(hit)"
TASKS = ("7.4",)
HINT = "One more block must be free to grow into."
