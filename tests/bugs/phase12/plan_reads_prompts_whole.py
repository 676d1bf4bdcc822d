"""Prompts in one step."""

FILE = "minifer/apps/simulate/capstone.py"
OLD = "return Plan(route=cheapest, order=patience, chunk=384)"
NEW = "return Plan(chunk=8192)"
TASKS = ("12.2",)
HINT = "A long step is a long gap for everybody who decodes: make the chunk smaller."
