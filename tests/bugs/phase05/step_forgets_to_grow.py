"""Step forgets to grow."""

FILE = "minifer/incremental.py"
OLD = "        self.length += len(tokens)\n"
NEW = ""
TASKS = ("5.3",)
HINT = "Afterwards these tokens are in the cache too."
