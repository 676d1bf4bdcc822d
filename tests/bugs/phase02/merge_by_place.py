"""Merge by place."""

FILE = "minifer/tokenizer/bpe.py"
OLD = "rank * n + i for i, pair"
NEW = "rank + i * n for i, pair"
TASKS = ("2.2",)
HINT = "The lowest rank goes first wherever it stands; the place only breaks ties."
