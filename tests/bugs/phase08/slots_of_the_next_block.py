"""Slots of the next block."""

FILE = "minifer/kv_cache/pool.py"
OLD = "tuple([table[p // size] * size + p % size for p in range(start, stop)])"
NEW = "tuple([table[p // size] * size + p % size for p in range(start, stop + 1)])"
TASKS = ("8.1",)
HINT = "`stop` is not part of it."
