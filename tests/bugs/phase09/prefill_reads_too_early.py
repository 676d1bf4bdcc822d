"""Prefill reads too early."""

FILE = "minifer/ops/kernels/flash_prefill.cu"
OLD = "        __syncthreads();\n\n"
NEW = "\n"
TASKS = ("flash_prefill",)
HINT = "Who loaded the key that this lane scores?"
