"""The field's name is missing."""

FILE = "minifer/apps/serve/reply.py"
OLD = 'return b"data: " + as_json(value) + b"\\n\\n"'
NEW = 'return as_json(value) + b"\\n\\n"'
TASKS = ("10.2",)
HINT = "An event's line begins with the name of its field, `data: `."
