"""Prefill sees the future."""

FILE = "minifer/ops/kernels/flash_prefill.cu"
OLD = "key <= position && key > position - window && key <= last_key"
NEW = "key > position - window && key <= last_key"
TASKS = ("flash_prefill",)
HINT = "The last row of a tile is right, and those above it know too much."
