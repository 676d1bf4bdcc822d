"""Combine adds unscaled."""

FILE = "minifer/ops/kernels/paged_combine.cu"
OLD = "part_out[(part + s) * HEAD_DIM + d] * __expf(part_stats[(part + s) * 2] - highest)"
NEW = "part_out[(part + s) * HEAD_DIM + d]"
TASKS = ("paged_attention",)
HINT = "Stretches have different maxima."
