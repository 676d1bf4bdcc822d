"""Step counts before."""

FILE = "minifer/incremental.py"
OLD = "        batch = make_batch("
NEW = "        self.length += 1\n        batch = make_batch("
TASKS = ("5.3",)
HINT = "Read the old length before you add."
