"""Release forgets the cache."""

FILE = "minifer/kv_cache/pool.py"
OLD = "if self.prefix is not None and block in self.prefix:"
NEW = "if False:"
TASKS = ("8.3",)
HINT = "A block that can be found stays findable."
