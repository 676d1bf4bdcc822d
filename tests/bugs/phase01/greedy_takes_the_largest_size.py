"""Greedy takes the largest size."""

FILE = "minifer/generate.py"
OLD = "return int(np.argmax(logits))"
NEW = "return int(np.argmax(abs(logits)))"
TASKS = ("1.1",)
HINT = "Logits may be negative; the most likely is the largest, not the one farthest from 0."
