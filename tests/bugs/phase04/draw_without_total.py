"""Draw without total."""

FILE = "minifer/sampling.py"
OLD = "u * cumulative[-1]"
NEW = "u"
TASKS = ("4.3",)
HINT = "The weights do not add up to 1: compare with u times their sum."
