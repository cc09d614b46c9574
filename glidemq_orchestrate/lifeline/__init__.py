"""Ends the processes that a process has started when it ends, also when it is killed."""
