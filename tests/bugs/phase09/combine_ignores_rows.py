"""Combine ignores rows."""

FILE = "minifer/ops/kernels/paged_combine.cu"
OLD = "(rows ? rows[blockIdx.x] : blockIdx.x)"
NEW = "blockIdx.x"
TASKS = ("paged_attention",)
HINT = "In a mixed step, the decoding sequences are not the first rows."
