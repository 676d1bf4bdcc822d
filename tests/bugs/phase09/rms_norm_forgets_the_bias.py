"""Rms norm forgets the bias."""

FILE = "minifer/ops/kernels/rms_norm.cu"
OLD = " + (bias ? to_float(bias[i]) : 0.0f)"
NEW = ""
TASKS = ("rms_norm",)
HINT = "Qwen2's products have a bias, Llama's have none: which of the two fails?"
