"""Decode misses itself."""

FILE = "minifer/ops/kernels/paged_split.cu"
OLD = "end = min(length, begin + stretch)"
NEW = "end = min(length - 1, begin + stretch)"
TASKS = ("paged_attention",)
HINT = "A token sees itself; with one token of context it sees nothing else."
