"""Train ids from 257."""

FILE = "minifer/tokenizer/bpe.py"
OLD = "merges[pair] = 256 + len(merges)"
NEW = "merges[pair] = 257 + len(merges)"
TASKS = ("2.3",)
HINT = "The first merge has the id 256."
