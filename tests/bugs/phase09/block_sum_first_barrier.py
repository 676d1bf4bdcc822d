"""Block sum first barrier."""

FILE = "minifer/ops/kernels/common.cuh"
OLD = "of_warp[threadIdx.x / 32] = value;\n    __syncthreads();"
NEW = "of_warp[threadIdx.x / 32] = value;"
TASKS = ("rms_norm",)
HINT = "Who has written of_warp[5] when warp 0 reads it? Try other thread orders."
