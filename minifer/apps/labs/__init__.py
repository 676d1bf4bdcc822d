"""The labs: tasks from `labs.toml`, stubs made from the reference, a grader that runs each task in a child process."""
