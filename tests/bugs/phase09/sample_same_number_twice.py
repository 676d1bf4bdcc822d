"""Sample same number twice."""

FILE = "minifer/ops/kernels/sample_advance.cu"
OLD = "uniform(seeds[b], (u64)(positions[b] + 1))"
NEW = "uniform(seeds[b], (u64)positions[b])"
TASKS = ("sample_advance",)
HINT = "The number belongs to the position of the new token."
