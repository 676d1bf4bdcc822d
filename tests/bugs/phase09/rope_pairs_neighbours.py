"""Rope pairs neighbours."""

FILE = "minifer/ops/kernels/rope_kv_write.cu"
OLD = "float a = to_float(from[i]), b = to_float(from[i + half]);"
NEW = "float a = to_float(from[2 * i]), b = to_float(from[2 * i + 1]);"
TASKS = ("rope_kv_write",)
HINT = "The paper pairs neighbours; the checkpoints pair element i with element i + D/2."
