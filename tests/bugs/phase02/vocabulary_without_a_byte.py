"""Vocabulary without a byte."""

FILE = "minifer/tokenizer/bpe.py"
OLD = "tokens = [bytes([byte]) for byte in range(256)]\n    for left"
NEW = "tokens = [bytes([byte]) for byte in range(255)]\n    for left"
TASKS = ("2.1",)
HINT = "There are 256 bytes, 0 to 255."
