"""Step at position zero."""

FILE = "minifer/incremental.py"
OLD = "[(tokens, self.length, (0,))]"
NEW = "[(tokens, 0, (0,))]"
TASKS = ("5.3",)
HINT = "New tokens stand behind the old ones."
