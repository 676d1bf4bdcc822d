"""Argmax logprob is positive."""

FILE = "minifer/ops/kernels/argmax_advance.cu"
OLD = "(float)-log(sum)"
NEW = "(float)log(sum)"
TASKS = ("argmax_advance",)
HINT = "The logarithm of a number below 1, and the sum is at least 1."
