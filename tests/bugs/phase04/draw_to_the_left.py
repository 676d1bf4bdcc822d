"""Draw to the left."""

FILE = "minifer/sampling.py"
OLD = """u * cumulative[-1], side="right")"""
NEW = """(1 - u) * cumulative[-1], side="right")"""
TASKS = ("4.3",)
HINT = "In order of id, from 0 upwards."
