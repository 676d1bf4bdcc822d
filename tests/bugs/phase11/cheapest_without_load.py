"""Only the cache counts."""

FILE = "minifer/apps/simulate/policies.py"
OLD = "length - found + price * unfinished"
NEW = "length - found"
TASKS = ("11.2",)
HINT = "What a replica has to do costs, too."
