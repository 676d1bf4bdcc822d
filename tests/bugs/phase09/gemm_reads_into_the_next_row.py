"""Gemm reads into the next row."""

FILE = "minifer/ops/kernels/skinny_gemm.cu"
OLD = "k + i < length ? to_float(row[k + i]) : 0.0f"
NEW = "to_float(row[k + i])"
TASKS = ("skinny_gemm_b2",)
HINT = "577 is not a multiple of 8."
