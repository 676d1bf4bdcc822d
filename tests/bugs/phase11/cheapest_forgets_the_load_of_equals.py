"""Equals go to the first."""

FILE = "minifer/apps/simulate/policies.py"
OLD = "key=lambda i: (cost[i], load[i], i)"
NEW = "key=lambda i: (cost[i], i)"
TASKS = ("11.2",)
HINT = "Equal costs go to the smaller load."
