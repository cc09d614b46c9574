"""Calls of the portable path, each within one slot."""
