"""Rope position of the row."""

FILE = "minifer/ops/kernels/rope_kv_write.cu"
OLD = "positions[token] * half"
NEW = "token * half"
TASKS = ("rope_kv_write",)
HINT = "A token's row in the step is not its position in the sequence."
