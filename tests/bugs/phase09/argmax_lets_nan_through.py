"""Argmax lets nan through."""

FILE = "minifer/ops/kernels/next_token.cuh"
OLD = "if (!(row[i] < 3.4e38f)) ++mine.bad;"
NEW = "if (row[i] >= 3.4e38f) ++mine.bad;"
TASKS = ("argmax_advance",)
HINT = "NaN is not larger than anything, and not smaller either."
