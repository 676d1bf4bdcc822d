"""Rms norm sum of a warp."""

FILE = "minifer/ops/kernels/rms_norm.cu"
OLD = "block_sum(squares)"
NEW = "warp_sum(squares)"
TASKS = ("rms_norm",)
HINT = "A block of 256 threads has eight warps."
