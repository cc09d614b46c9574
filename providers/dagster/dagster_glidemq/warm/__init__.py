"""Processes that have a code location imported, and fork a child for each step and run."""
