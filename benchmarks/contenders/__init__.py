"""One file a contender: what it is like to add to it, to run its worker, and to submit a flow to it.

Each runs as a process of its own, a producer or a worker, in its own environment; nothing here imports more
than the standard library and that contender.
"""
