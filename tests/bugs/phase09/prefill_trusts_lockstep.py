"""Prefill trusts lockstep."""

FILE = "minifer/ops/kernels/flash_prefill.cu"
OLD = "        __syncwarp();"
NEW = "        ;"
TASKS = ("flash_prefill",)
HINT = "Since Volta the lanes of a warp do not run in step."
