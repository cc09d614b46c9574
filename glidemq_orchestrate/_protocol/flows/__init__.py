"""Calls about flows and their nodes."""
