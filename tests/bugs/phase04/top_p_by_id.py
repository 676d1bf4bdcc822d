"""Top p by id."""

FILE = "minifer/sampling.py"
OLD = """order = candidates[np.argsort(-weights[candidates], kind="stable")]"""
NEW = "order = candidates"
TASKS = ("4.2",)
HINT = "Most likely first: sort before you add up."
