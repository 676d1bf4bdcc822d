"""Decode forgets to shrink."""

FILE = "minifer/ops/kernels/paged_split.cu"
OLD = "sum[g] = sum[g] * shrink + p;"
NEW = "sum[g] = sum[g] + p;"
TASKS = ("paged_attention",)
HINT = "Online softmax: when a larger maximum comes, what was summed under the old one is worth less."
