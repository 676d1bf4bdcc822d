"""Rms norm eps outside."""

FILE = "minifer/ops/reference.py"
OLD = "sqrt(mean_square + x.dtype.type(eps)) * weight"
NEW = "sqrt(mean_square) * weight + x.dtype.type(eps)"
TASKS = ("3.2",)
HINT = "eps stands under the root."
