"""Runs jobs, on three floors; the life of a job reads from ``feed`` to ``execution`` and back.

Above: ``services``, which users start. In the middle: ``feed`` fetches jobs and reports outcomes, ``held``
lets them wait or run, ``execution`` calls handlers through ``middleware``, ``leases`` renews. Below:
``handlers``, what users write against, and what all parts share.
"""
