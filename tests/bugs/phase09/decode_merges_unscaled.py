"""Decode merges unscaled."""

FILE = "minifer/ops/kernels/paged_split.cu"
OLD = "merged += warp_out[w][g][d] * shrink;"
NEW = "merged += warp_out[w][g][d];"
TASKS = ("paged_attention",)
HINT = "Each warp has a maximum of its own."
