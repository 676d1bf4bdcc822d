"""Prefill overwrites a tile."""

FILE = "minifer/ops/kernels/flash_prefill.cu"
OLD = "        __syncthreads();  // the last tile has been used up\n"
NEW = ""
TASKS = ("flash_prefill",)
HINT = "A fast warp loads the next tile while a slow one still reads this one, in some orders."
