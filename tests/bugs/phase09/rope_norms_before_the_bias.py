"""Rope norms before the bias."""

FILE = "minifer/ops/kernels/rope_kv_write.cu"
OLD = "float x = to_float(from[i]) + (bias ? to_float(bias[i]) : 0.0f);"
NEW = "float x = to_float(from[i]);"
TASKS = ("rope_kv_write",)
HINT = "What is normed is the query, and the query includes its bias."
