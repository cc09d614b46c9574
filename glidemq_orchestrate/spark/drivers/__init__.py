"""Drivers of ``spark.submit`` jobs: they outlive their worker until the next one takes them over.

Importing this package loads nothing else: the keeper of a driver is a process of its own, and starts fast.
"""
