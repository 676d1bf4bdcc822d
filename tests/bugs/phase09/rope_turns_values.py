"""Rope turns values."""

FILE = "minifer/ops/kernels/rope_kv_write.cu"
OLD = "        if (!is_v) {"
NEW = "        {"
TASKS = ("rope_kv_write",)
HINT = "Positions belong into scores, and values take no part in them."
