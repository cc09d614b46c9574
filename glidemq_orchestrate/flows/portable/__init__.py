"""The portable path: flows whose queues are in several slots, and servers without our functions.

No call accesses two slots, and none depends on our functions. A kill between two calls leaves one of two
things. Nodes blocked by gates: the next submission continues with them, or the sweep removes them. Or a
record in state ``running``: any later ``advance``, by any client, does the rest. Nothing else carries a
portable flow across queues, so workers, waiting clients and supervisors all call it.
"""
