"""Fetching the jobs of a queue, and reporting their outcomes."""
