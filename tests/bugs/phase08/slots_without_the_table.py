"""Slots without the table."""

FILE = "minifer/kv_cache/pool.py"
OLD = "tuple([table[p // size] * size + p % size"
NEW = "tuple([p // size * size + p % size"
TASKS = ("8.1",)
HINT = "Ask the table where a block lies."
