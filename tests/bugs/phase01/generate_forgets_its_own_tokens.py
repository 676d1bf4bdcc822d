"""Generate forgets its own tokens."""

FILE = "minifer/generate.py"
OLD = "        ids.append(token)\n"
NEW = ""
TASKS = ("1.2",)
HINT = "The next call must see the token that was just made."
