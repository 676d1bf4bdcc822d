"""Prefill ignores the chunk."""

FILE = "minifer/incremental.py"
OLD = "size = chunk or max(1, len(prompt))"
NEW = "size = max(1, len(prompt))"
TASKS = ("5.4",)
HINT = "A chunk at a time."
