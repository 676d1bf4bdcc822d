"""Percentile nearest."""

FILE = "minifer/metrics.py"
OLD = "return below + (above - below) * beyond / 100"
NEW = "return below"
TASKS = ("7.2",)
HINT = "Between two values interpolate."
