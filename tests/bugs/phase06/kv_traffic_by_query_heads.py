"""Kv traffic by query heads."""

FILE = "minifer/roofline/predict.py"
OLD = "c.num_key_value_heads * c.head_dim * width"
NEW = "c.num_attention_heads * c.head_dim * width"
TASKS = ("6.3",)
HINT = "Grouped heads share keys and values."
