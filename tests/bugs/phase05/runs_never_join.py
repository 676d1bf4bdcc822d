"""Runs never join."""

FILE = "minifer/kv_cache/store.py"
OLD = "if found and found[-1][1] == start:"
NEW = "if False:"
TASKS = ("5.2",)
HINT = "Adjacent blocks are one stretch."
