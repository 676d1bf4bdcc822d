"""A share instead of a rate."""

FILE = "minifer/apps/simulate/capstone.py"
OLD = "return kept / duration if duration > 0 else 0.0"
NEW = "return kept / len(finished) if finished else 0.0"
TASKS = ("12.1",)
HINT = "Requests per second: divide by the duration."
