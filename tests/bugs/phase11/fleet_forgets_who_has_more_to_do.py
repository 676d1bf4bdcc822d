"""Work is left when the last request has arrived."""

FILE = "minifer/apps/simulate/fleet.py"
OLD = "if self.replicas[index].requests:"
NEW = "if self.replicas[index].requests and arrival is not None:"
TASKS = ("11.1",)
HINT = "The run ends when nothing comes and nobody has work, not when nothing comes."
