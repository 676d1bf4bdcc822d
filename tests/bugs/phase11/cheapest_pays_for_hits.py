"""A hit costs."""

FILE = "minifer/apps/simulate/policies.py"
OLD = "length - found + price * unfinished"
NEW = "length + found + price * unfinished"
TASKS = ("11.2",)
HINT = "A matched token is one less to compute."
