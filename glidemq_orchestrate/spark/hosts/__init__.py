"""The session hosts of a worker: child processes, each with a Spark session that its steps share.

This is the worker's side; ``host_process`` is what runs in them.
"""
