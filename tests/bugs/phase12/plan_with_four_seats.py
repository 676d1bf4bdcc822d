"""Too few seats."""

FILE = "minifer/apps/simulate/capstone.py"
OLD = "return Plan(route=cheapest, order=patience, chunk=384)"
NEW = "return Plan(route=cheapest, order=patience, chunk=384, seats=4)"
TASKS = ("12.2",)
HINT = "A request without a seat waits, and its first token with it."
