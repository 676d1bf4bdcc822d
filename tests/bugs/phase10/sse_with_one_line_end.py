"""Only one line end."""

FILE = "minifer/apps/serve/reply.py"
OLD = 'return b"data: " + as_json(value) + b"\\n\\n"'
NEW = 'return b"data: " + as_json(value) + b"\\n"'
TASKS = ("10.2",)
HINT = "A blank line ends an event: two line ends."
