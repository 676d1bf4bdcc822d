"""Swiglu swaps gate and up."""

FILE = "minifer/ops/kernels/swiglu.cu"
OLD = "gate / (1.0f + __expf(-gate)) * up"
NEW = "up / (1.0f + __expf(-up)) * gate"
TASKS = ("swiglu",)
HINT = "Which of the two goes through the sigmoid?"
