"""Generate swallows the end."""

FILE = "minifer/generate.py"
OLD = "        yield token\n        if token in eos_ids:\n            return\n"
NEW = "        if token in eos_ids:\n            return\n        yield token\n"
TASKS = ("1.2",)
HINT = "The end token is part of the answer: yield it, then stop."
