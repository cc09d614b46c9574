"""Calls about queues and their jobs."""
