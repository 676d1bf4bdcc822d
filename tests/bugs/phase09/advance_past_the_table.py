"""Advance past the table."""

FILE = "minifer/ops/kernels/next_token.cuh"
OLD = "block < table_width ? tables[row * table_width + block] * block_size + position % block_size : -1"
NEW = "tables[row * table_width + block] * block_size + position % block_size"
TASKS = ("argmax_advance",)
HINT = "Behind the last entry of this table begins the next sequence's."
