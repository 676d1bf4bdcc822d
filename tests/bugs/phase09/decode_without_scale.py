"""Decode without scale."""

FILE = "minifer/ops/kernels/paged_split.cu"
OLD = "to_float(q[query + g * HEAD_DIM + d]) * scale"
NEW = "to_float(q[query + g * HEAD_DIM + d])"
TASKS = ("paged_attention",)
HINT = "Scores grow with the square root of the head's size unless they are divided by it."
