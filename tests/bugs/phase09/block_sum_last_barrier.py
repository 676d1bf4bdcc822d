"""Block sum last barrier."""

FILE = "minifer/ops/kernels/common.cuh"
OLD = "total += of_warp[w];\n    __syncthreads();"
NEW = "total += of_warp[w];"
TASKS = ("sample_advance",)
HINT = "Right when it is called once. Twice in a row, a fast warp writes while a slow one still reads."
