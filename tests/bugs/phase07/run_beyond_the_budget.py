"""Run beyond the budget."""

FILE = "minifer/scheduler/continuous.py"
OLD = "count = min(request.remaining, self._draft.budget)"
NEW = "count = request.remaining"
TASKS = ("7.3",)
HINT = "A step has so many tokens, and no more."
