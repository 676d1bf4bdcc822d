"""Rms norm without eps."""

FILE = "minifer/ops/kernels/rms_norm.cu"
OLD = "block_sum(squares) / width + eps"
NEW = "block_sum(squares) / width"
TASKS = ("rms_norm",)
HINT = "Large rows look right. Look at a row of very small numbers."
