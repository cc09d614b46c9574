"""Ends the child processes of a process when it ends, even if it is killed."""
