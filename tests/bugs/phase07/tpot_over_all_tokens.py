"""Tpot over all tokens."""

FILE = "minifer/metrics.py"
OLD = "/ (output_tokens - 1) if output_tokens > 1"
NEW = "/ output_tokens if output_tokens > 1"
TASKS = ("7.1",)
HINT = "k tokens have k - 1 gaps."
