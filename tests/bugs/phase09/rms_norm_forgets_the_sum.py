"""Rms norm forgets the sum."""

FILE = "minifer/ops/kernels/rms_norm.cu"
OLD = "            stream[from + i] = x;\n"
NEW = ""
TASKS = ("rms_norm",)
HINT = "The residual stream is read again, by the second loop and by the next layer."
