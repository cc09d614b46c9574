"""Measurements: run on purpose, never as a test."""
