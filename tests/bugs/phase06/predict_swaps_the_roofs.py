"""Predict swaps the roofs."""

FILE = "minifer/roofline/predict.py"
OLD = "cost.flops / roof.flops_per_s, cost.bytes / roof.read_bytes_per_s"
NEW = "cost.flops / roof.read_bytes_per_s, cost.bytes / roof.flops_per_s"
TASKS = ("6.2",)
HINT = "FLOPs by the arithmetic rate, bytes by the memory's."
