"""Prefill forgets the prefix."""

FILE = "minifer/ops/kernels/flash_prefill.cu"
OLD = "position = offset + (first_row + row) / GROUP;"
NEW = "position = (first_row + row) / GROUP;"
TASKS = ("flash_prefill",)
HINT = "A chunk's first token has a past."
