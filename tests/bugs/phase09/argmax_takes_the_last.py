"""Argmax takes the last."""

FILE = "minifer/ops/kernels/next_token.cuh"
OLD = "(value == top.value && index < top.index)"
NEW = "(value == top.value && index > top.index)"
TASKS = ("argmax_advance",)
HINT = "Two tokens are equally likely: which one does NumPy take?"
