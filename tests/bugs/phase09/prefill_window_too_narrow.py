"""Prefill window too narrow."""

FILE = "minifer/ops/kernels/flash_prefill.cu"
OLD = "key > position - window"
NEW = "key > position - window + 1"
TASKS = ("flash_prefill",)
HINT = "A window of 1 means that a token sees itself."
