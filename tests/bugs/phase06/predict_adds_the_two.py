"""Predict adds the two."""

FILE = "minifer/roofline/predict.py"
OLD = "bandwidth, max(compute, bandwidth))"
NEW = "bandwidth, compute + bandwidth)"
TASKS = ("6.2",)
HINT = "Reading and computing go on at the same time: the longer of the two counts."
