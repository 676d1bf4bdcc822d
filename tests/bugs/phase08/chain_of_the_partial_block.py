"""Chain of the partial block."""

FILE = "minifer/kv_cache/prefix.py"
OLD = "len(token_ids) - block_size + 1, block_size)"
NEW = "len(token_ids), block_size)"
TASKS = ("8.4",)
HINT = "Only full blocks have a key."
