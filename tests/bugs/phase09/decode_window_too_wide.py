"""Decode window too wide."""

FILE = "minifer/ops/kernels/paged_split.cu"
OLD = "first = max(0, length - window)"
NEW = "first = max(0, length - window - 1)"
TASKS = ("paged_attention",)
HINT = "A window of w tokens holds the token itself and w - 1 before it."
