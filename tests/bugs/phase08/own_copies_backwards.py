"""Own copies backwards."""

FILE = "minifer/kv_cache/pool.py"
OLD = "(old, new)\n\n"
NEW = "(new, old)\n\n"
TASKS = ("8.2",)
HINT = "From the old one to the new one."
