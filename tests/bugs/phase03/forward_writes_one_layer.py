"""Forward writes one layer."""

FILE = "minifer/model/transformer.py"
OLD = "rope_table, batch, store, index)"
NEW = "rope_table, batch, store, 0)"
TASKS = ("3.6",)
HINT = "Each layer has its own part of the cache."
