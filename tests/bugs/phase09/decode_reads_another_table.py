"""Decode reads another table."""

FILE = "minifer/ops/kernels/paged_split.cu"
OLD = "tables[sequence * table_width + t / block_size]"
NEW = "tables[t / block_size]"
TASKS = ("paged_attention",)
HINT = "The first sequence of the batch is right, and the others talk about its subject."
