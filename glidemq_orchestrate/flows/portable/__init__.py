"""The portable path: flows whose queues are in several slots, and servers without our functions.

No call touches two slots, and none depends on a function of ours. A kill between two calls leaves either
nodes held back by gates (the next submission continues, or the sweep removes them), or a record that says
``running``: any later ``advance``, by any client, does what is missing. Nothing else carries a portable flow
across queues, so workers, waiting clients and supervisors all call it.
"""
