"""Greedy takes the last."""

FILE = "minifer/generate.py"
OLD = "return int(np.argmax(logits))"
NEW = "return int(len(logits) - 1 - np.argmax(logits[::-1]))"
TASKS = ("1.1",)
HINT = "Of equal values the smaller id wins."
