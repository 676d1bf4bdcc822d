"""Push decodes each token alone."""

FILE = "minifer/tokenizer/stream.py"
OLD = "        return self._utf8.decode(data)\n"
NEW = '        return data.decode("utf-8", "replace")\n'
TASKS = ("2.4",)
HINT = "A character may need several tokens: use the decoder that remembers."
