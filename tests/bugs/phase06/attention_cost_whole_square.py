"""Attention cost whole square."""

FILE = "minifer/model/cost.py"
OLD = "growing * (growing + 1) // 2"
NEW = "growing * growing"
TASKS = ("6.1",)
HINT = "A triangle: each token sees itself and what came before."
