"""Starting the processes of a run on this machine, and saying what went wrong in them."""

LOGS = "logs"
"""Directory in `output_dir` where ranks other than 0 log."""
