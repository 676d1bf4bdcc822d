"""Runs read the whole last block."""

FILE = "minifer/kv_cache/store.py"
OLD = "start + min(block_size, length - index * block_size)"
NEW = "start + block_size"
TASKS = ("5.2",)
HINT = "The last block is read only as far as there are tokens."
