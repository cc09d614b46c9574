"""The staged path: flows within one slot, where our server functions do everything.

A kill between any two steps leaves either staged nodes that cannot start (submit again with the same id to
continue), or a flow whose record lists the remaining work (``gmo:todo``). Every worker of the home queue
periodically does such work.
"""
