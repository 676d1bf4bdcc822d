"""A leap past the next arrival."""

FILE = "minifer/apps/simulate/fleet.py"
OLD = "arrival.at if arrival is not None else NEVER"
NEW = "NEVER"
TASKS = ("11.1",)
HINT = "No step may start after the next arrival before that was routed: give `_step` its time as the horizon."
