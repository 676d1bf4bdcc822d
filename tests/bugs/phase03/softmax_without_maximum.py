"""Softmax without maximum."""

FILE = "minifer/ops/reference.py"
OLD = "e = xp.exp(x - top)"
NEW = "e = xp.exp(x)"
TASKS = ("3.1",)
HINT = "exp(1000) overflows: subtract the row's maximum."
