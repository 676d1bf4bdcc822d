"""What stands on top of the core: the command line, the demonstration, tools to look and to measure.

Every other file of the package works without this folder; a test deletes it and runs the phases.
"""
