"""The staged path: flows within one slot, where our server functions do everything.

A kill between any two steps leaves one of these, and the work continues as stated:

* staged nodes that cannot start: the next submission with the same id continues with them;
* a started flow with remaining work, listed in ``gmo:todo``: every worker of the home queue does such work
  periodically.
"""
