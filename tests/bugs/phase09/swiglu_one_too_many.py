"""Swiglu one too many."""

FILE = "minifer/ops/kernels/swiglu.cu"
OLD = "if (column >= width) return;"
NEW = "if (column > width) return;"
TASKS = ("swiglu",)
HINT = "Rows lie behind each other: element `width` of one row is element 0 of the next."
