"""Train one too many."""

FILE = "minifer/tokenizer/bpe.py"
OLD = "while len(merges) < vocab_size - 256:"
NEW = "while len(merges) <= vocab_size - 256:"
TASKS = ("2.3",)
HINT = "vocab_size counts the 256 bytes and the merges, and no more."
