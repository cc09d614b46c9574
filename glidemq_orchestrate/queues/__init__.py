"""Whole queues: lists and counts, limits, pausing, cleaning, dead letters."""
