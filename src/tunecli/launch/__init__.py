"""Starting the processes of a run on this machine, and saying what went wrong in them."""
