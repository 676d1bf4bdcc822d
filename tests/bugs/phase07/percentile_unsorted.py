"""Percentile unsorted."""

FILE = "minifer/metrics.py"
OLD = "ordered = sorted(values)"
NEW = "ordered = values"
TASKS = ("7.2",)
HINT = "The values come as they come: sort them."
