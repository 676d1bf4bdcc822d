"""Prefill mixes heads."""

FILE = "minifer/ops/kernels/flash_prefill.cu"
OLD = "size_t to = (((size_t)starts[span] + row / GROUP) * kv_heads + kv) * GROUP + row % GROUP;"
NEW = "size_t to = (((size_t)starts[span] + row / GROUP) * kv_heads + kv) * GROUP + (row + 1) % GROUP;"
TASKS = ("flash_prefill",)
HINT = "Every number is right, under another head."
