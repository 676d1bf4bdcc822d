"""Find trusts the digest."""

FILE = "minifer/kv_cache/prefix.py"
OLD = "if block is None or self._key_of[block] != key:"
NEW = "if block is None:"
TASKS = ("8.5",)
HINT = "A collision of digests is a miss: compare the ids and the parent."
