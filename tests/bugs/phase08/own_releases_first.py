"""Own releases first."""

FILE = "minifer/kv_cache/pool.py"
OLD = "        (new,) = self._take(1, after=table[index - 1] if index else -1)\n        self._release(old)\n"
NEW = "        self._release(old)\n        (new,) = self._take(1, after=table[index - 1] if index else -1)\n"
TASKS = ("8.2",)
HINT = "The old block must not be handed out before it has been copied."
