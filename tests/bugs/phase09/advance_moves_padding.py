"""Advance moves padding."""

FILE = "minifer/ops/kernels/next_token.cuh"
OLD = "    if (slots[row] < 0) return;\n"
NEW = ""
TASKS = ("argmax_advance",)
HINT = "A padding row has no next position."
