"""Vocabulary swaps the halves."""

FILE = "minifer/tokenizer/bpe.py"
OLD = "tokens[left] + tokens[right])\n    return tokens"
NEW = "tokens[right] + tokens[left])\n    return tokens"
TASKS = ("2.1",)
HINT = "The left half comes first."
