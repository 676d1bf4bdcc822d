"""Push strips every blank."""

FILE = "minifer/tokenizer/stream.py"
OLD = """data, self._at_start = data.removeprefix(b" "), False"""
NEW = """data = data.removeprefix(b" ")"""
TASKS = ("2.4",)
HINT = "Only the very first blank is not text."
