"""The router ignores the turn."""

FILE = "minifer/apps/serve/router.py"
OLD = "in_turn = sorted(living, key=lambda i: (i - self._last - 1) % self.num_replicas)"
NEW = "in_turn = list(living)"
TASKS = ("10.1",)
HINT = "Among equals the next one after the last choice."
