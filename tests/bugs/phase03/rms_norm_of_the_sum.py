"""Rms norm of the sum."""

FILE = "minifer/ops/reference.py"
OLD = "(x * x).sum(axis=-1, keepdims=True) / x.shape[-1]"
NEW = "(x * x).sum(axis=-1, keepdims=True)"
TASKS = ("3.2",)
HINT = "A mean is the sum divided by how many there are."
