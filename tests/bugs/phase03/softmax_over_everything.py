"""Softmax over everything."""

FILE = "minifer/ops/reference.py"
OLD = "total = e.sum(axis=-1, keepdims=True)"
NEW = "total = e.sum()"
TASKS = ("3.1",)
HINT = "Each row sums to 1 by itself."
