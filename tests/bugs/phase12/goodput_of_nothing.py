"""A request without a token is good."""

FILE = "minifer/apps/simulate/capstone.py"
OLD = "metrics.output_tokens > 0 and meets(metrics, slo_ms)"
NEW = "meets(metrics, slo_ms)"
TASKS = ("12.1",)
HINT = "What is undefined breaks no promise: who got no token must be left out by hand."
