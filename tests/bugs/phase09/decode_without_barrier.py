"""Decode without barrier."""

FILE = "minifer/ops/kernels/paged_split.cu"
OLD = "    __syncthreads();\n"
NEW = ""
TASKS = ("paged_attention",)
HINT = "The merge reads what four warps wrote. In the natural order of threads it looks right."
