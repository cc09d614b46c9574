"""Calls of workers and supervisors."""
