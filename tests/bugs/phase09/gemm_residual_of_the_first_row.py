"""Gemm residual of the first row."""

FILE = "minifer/ops/kernels/skinny_gemm.cu"
OLD = "residual[at] : 0.0f"
NEW = "residual[n] : 0.0f"
TASKS = ("skinny_gemm_wide_b2",)
HINT = "Right with one row, wrong with two."
