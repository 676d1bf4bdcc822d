"""Gemm writes past the end."""

FILE = "minifer/ops/kernels/skinny_gemm.cu"
OLD = "    if (n >= outputs) return;  // a whole warp leaves\n"
NEW = ""
TASKS = ("skinny_gemm_b1",)
HINT = "21 outputs, four warps to a block: what do the last three warps do?"
