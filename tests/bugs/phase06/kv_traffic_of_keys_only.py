"""Kv traffic of keys only."""

FILE = "minifer/roofline/predict.py"
OLD = "return 2.0 * c.num_hidden_layers"
NEW = "return 1.0 * c.num_hidden_layers"
TASKS = ("6.3",)
HINT = "Keys and values are two."
