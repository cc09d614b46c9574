"""One file per contender: how to add jobs, run a worker and submit a flow with it.

Each runs as a process of its own, a producer or a worker, in its own environment; a file imports only the
standard library and its contender.
"""
