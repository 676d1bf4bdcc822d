"""Attention without scale."""

FILE = "minifer/ops/reference.py"
OLD = "scale = q_THD.dtype.type(head_dim**-0.5)"
NEW = "scale = q_THD.dtype.type(1.0)"
TASKS = ("3.5",)
HINT = "Scores are divided by the root of head_dim."
