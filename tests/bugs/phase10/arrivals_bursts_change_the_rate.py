"""Bursts change the rate."""

FILE = "minifer/apps/workloads.py"
OLD = "source.gammavariate(burstiness, 1 / burstiness) / rate"
NEW = "source.gammavariate(burstiness, 1.0) / rate"
TASKS = ("10.3",)
HINT = "A Gamma of shape b has mean b times its scale: the scale must be 1 / b, or bursts change the rate."
