"""Rope uses what it has just changed."""

FILE = "minifer/ops/kernels/rope_kv_write.cu"
OLD = "rotated = a * c - b * s;\n            b = b * c + a * s;\n            a = rotated;"
NEW = "rotated = a * c - b * s;\n            a = rotated;\n            b = b * c + a * s;"
TASKS = ("rope_kv_write",)
HINT = "Both new numbers need both old ones."
