"""Swiglu of the up."""

FILE = "minifer/ops/reference.py"
OLD = "return gate * sigmoid * up"
NEW = "return up * sigmoid * up"
TASKS = ("3.4",)
HINT = "silu(z) = z * sigmoid(z), and z is the gate."
