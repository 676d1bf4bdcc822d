"""Sample raw seed."""

FILE = "minifer/ops/kernels/sample_advance.cu"
OLD = "mix64(mix64(seed) ^ position)"
NEW = "mix64(seed ^ position)"
TASKS = ("sample_advance",)
HINT = "Seeds 6 and 7 at positions 1 and 0: the same draw for two requests."
