"""Calls about the server itself."""
