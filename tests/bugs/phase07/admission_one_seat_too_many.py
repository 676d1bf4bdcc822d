"""Admission one seat too many."""

FILE = "minifer/scheduler/continuous.py"
OLD = "len(self.running) >= self.config.max_num_seqs"
NEW = "len(self.running) > self.config.max_num_seqs"
TASKS = ("7.4",)
HINT = "With all seats taken there is none."
