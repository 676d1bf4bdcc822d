"""Rms norm ignores rows."""

FILE = "minifer/ops/kernels/rms_norm.cu"
OLD = "(rows ? rows[blockIdx.x] : blockIdx.x)"
NEW = "(blockIdx.x)"
TASKS = ("rms_norm",)
HINT = "Logits of the wrong token of the prompt: which row of the stream was normed?"
