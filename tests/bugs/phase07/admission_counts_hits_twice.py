"""Admission counts hits twice."""

FILE = "minifer/scheduler/continuous.py"
OLD = "self.pool.room_beside(hit)"
NEW = "self.pool.num_free"
TASKS = ("7.4",)
HINT = "The found blocks are free, but not to be handed out."
