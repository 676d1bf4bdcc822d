"""Generate stops at an old end."""

FILE = "minifer/generate.py"
OLD = "        if token in eos_ids:\n            return\n        ids.append(token)\n"
NEW = "        ids.append(token)\n        if not set(ids).isdisjoint(eos_ids):\n            return\n"
TASKS = ("1.2",)
HINT = "Only the new token can end the answer: an end that stands in the prompt ended something else."
