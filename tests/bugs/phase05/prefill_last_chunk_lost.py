"""Prefill last chunk lost."""

FILE = "minifer/incremental.py"
OLD = "range(size, len(prompt), size)"
NEW = "range(size, len(prompt) - len(prompt) % size, size)"
TASKS = ("5.4",)
HINT = "The last chunk may be shorter, but it is there."
