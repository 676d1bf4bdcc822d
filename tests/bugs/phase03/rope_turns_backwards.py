"""Rope turns backwards."""

FILE = "minifer/ops/reference.py"
OLD = "[a * cos - b * sin, b * cos + a * sin]"
NEW = "[a * cos + b * sin, b * cos - a * sin]"
TASKS = ("3.3",)
HINT = "Check the signs of the rotation: a cos - b sin."
