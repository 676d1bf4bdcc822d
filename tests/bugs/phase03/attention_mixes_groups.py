"""Attention mixes groups."""

FILE = "minifer/ops/reference.py"
OLD = "q = q_THD[:, kv * group : (kv + 1) * group]"
NEW = "q = q_THD[:, kv::kv_heads]"
TASKS = ("3.5",)
HINT = "Query head h reads kv head h // G: neighbours share one."
