"""Chain without parent."""

FILE = "minifer/kv_cache/prefix.py"
OLD = "parent = chain[-1].digest if chain else ROOT"
NEW = "parent = ROOT"
TASKS = ("8.4",)
HINT = "The whole prefix counts: hash the block before it, too."
