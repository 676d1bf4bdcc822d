"""Warp sum skips lanes."""

FILE = "minifer/ops/kernels/common.cuh"
OLD = "bit > 0; bit /= 2) value += __shfl"
NEW = "bit > 1; bit /= 2) value += __shfl"
TASKS = ("rms_norm",)
HINT = (
    "Five steps reach 32 lanes: 16, 8, 4, 2 and 1. How many values have been added up when the last step is left out?"
)
