"""Step takes many for the first."""

FILE = "minifer/incremental.py"
OLD = "[(tokens, self.length, (0,))]"
NEW = "[(tokens, self.length if len(tokens) == 1 else 0, (0,))]"
TASKS = ("5.3",)
HINT = "A second chunk stands behind the first one, however many tokens it has."
