"""Evenly spread instead of exponential."""

FILE = "minifer/apps/workloads.py"
OLD = "source.gammavariate(burstiness, 1 / burstiness) / rate"
NEW = "source.uniform(0.5, 1.5) / rate"
TASKS = ("10.3",)
HINT = "The gaps of independent people are exponential: short ones are the most frequent."
