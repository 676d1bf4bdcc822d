"""Attention sees the future."""

FILE = "minifer/ops/reference.py"
OLD = "xp.where(visible, scores, scores.dtype.type(-math.inf))"
NEW = "xp.where(visible | True, scores, scores.dtype.type(-math.inf))"
TASKS = ("3.5",)
HINT = "A token sees itself and what came before, nothing else."
