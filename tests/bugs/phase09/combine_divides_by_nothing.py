"""Combine divides by nothing."""

FILE = "minifer/ops/kernels/paged_combine.cu"
OLD = "total > 0.0f ? merged / total : 0.0f"
NEW = "merged / total"
TASKS = ("paged_attention",)
HINT = "What is the attention of a padding row, which may see no key at all?"
