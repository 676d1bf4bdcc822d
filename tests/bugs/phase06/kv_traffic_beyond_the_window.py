"""Kv traffic beyond the window."""

FILE = "minifer/roofline/predict.py"
OLD = "min(context, c.window())"
NEW = "context"
TASKS = ("6.3",)
HINT = "A window reads no more than its width."
