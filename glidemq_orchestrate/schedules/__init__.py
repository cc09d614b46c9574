"""Repeating jobs: when they run, how they are stored, and the calls that fire them."""
