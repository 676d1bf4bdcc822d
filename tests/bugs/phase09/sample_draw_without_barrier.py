"""Sample draw without barrier."""

FILE = "minifer/ops/kernels/sample_advance.cu"
OLD = "    weights[threadIdx.x] = mine;\n    __syncthreads();"
NEW = "    weights[threadIdx.x] = mine;"
TASKS = ("sample_advance",)
HINT = "Thread 0 adds up what all threads wrote."
