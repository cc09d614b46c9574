"""Runs one step in the process of its session: a Python function or a statement of SQL."""
