"""Prefill loads past the end."""

FILE = "minifer/ops/kernels/flash_prefill.cu"
OLD = "            if (key <= last_key) {"
NEW = "            {"
TASKS = ("flash_prefill",)
HINT = "Zero times NaN is NaN: what is not visible must not be loaded either."
