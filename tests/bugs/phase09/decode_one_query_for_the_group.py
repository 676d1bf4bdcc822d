"""Decode one query for the group."""

FILE = "minifer/ops/kernels/paged_split.cu"
OLD = "q[query + g * HEAD_DIM + d]"
NEW = "q[query + d]"
TASKS = ("paged_attention",)
HINT = "GROUP query heads share one kv head. They do not share the query."
