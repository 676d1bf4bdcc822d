"""Rope writes padding."""

FILE = "minifer/ops/kernels/rope_kv_write.cu"
OLD = "    if (!is_q && slot < 0) return;\n"
NEW = ""
TASKS = ("rope_kv_write",)
HINT = "Slot -1 is a place in memory, too: somebody else's."
