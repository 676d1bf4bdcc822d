"""Rope pairs neighbours."""

FILE = "minifer/ops/reference.py"
OLD = "a, b = x_THD[..., :half], x_THD[..., half:]"
NEW = "a, b = x_THD[..., ::2], x_THD[..., 1::2]"
TASKS = ("3.3",)
HINT = "The halves are pairs here, not neighbours."
