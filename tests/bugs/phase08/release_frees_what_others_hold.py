"""Release frees what others hold."""

FILE = "minifer/kv_cache/pool.py"
OLD = "        self.refs[block] -= 1\n        if self.refs[block] == 0:"
NEW = "        self.refs[block] -= 1\n        if self.refs[block] >= 0:"
TASKS = ("8.3",)
HINT = "Only the last one who lets go frees a block."
