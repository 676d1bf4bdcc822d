"""Swiglu without silu."""

FILE = "minifer/ops/reference.py"
OLD = "return gate * sigmoid * up"
NEW = "return sigmoid * up"
TASKS = ("3.4",)
HINT = "silu(z) is z times sigmoid(z), not sigmoid alone."
