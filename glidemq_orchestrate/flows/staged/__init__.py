"""Flows within one slot: the server does everything, by functions of ours.

A kill between any two steps leaves either staged nodes that cannot start (submit again with the same id to
continue), or a flow whose record lists the remaining work (``gmo:todo``). Every worker of the home queue does
such work from time to time.
"""
