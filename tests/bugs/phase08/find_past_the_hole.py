"""Find past the hole."""

FILE = "minifer/kv_cache/prefix.py"
OLD = "                break\n            hit.append(block)"
NEW = "                continue\n            hit.append(block)"
TASKS = ("8.5",)
HINT = "Stop at the first hole."
