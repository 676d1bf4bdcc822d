"""Merge keeps stale pairs."""

FILE = "minifer/tokenizer/bpe.py"
OLD = "if row[i] is None or j == n or rank_of((row[i], row[j])) != rank:"
NEW = "if row[i] is None or j == n:"
TASKS = ("2.2",)
HINT = "A pair in the heap may have changed since: compare its rank again."
