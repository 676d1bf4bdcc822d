"""Sample cut loses a tie."""

FILE = "minifer/ops/kernels/sample_advance.cu"
OLD = "key == row.key && id <= row.last"
NEW = "key == row.key && id < row.last"
TASKS = ("sample_advance",)
HINT = "Top-k with k = 1 keeps one token."
