"""Attention cost by query heads."""

FILE = "minifer/model/cost.py"
OLD = "kv_size = 2 * keys * c.num_key_value_heads"
NEW = "kv_size = 2 * keys * c.num_attention_heads"
TASKS = ("6.1",)
HINT = "Keys and values are stored by kv heads."
