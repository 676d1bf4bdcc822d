"""Advance keeps the block."""

FILE = "minifer/ops/kernels/next_token.cuh"
OLD = "block = position / block_size;"
NEW = "block = positions[row] / block_size;"
TASKS = ("argmax_advance",)
HINT = "Right for fifteen tokens of sixteen."
