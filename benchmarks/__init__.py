"""Benchmarks: run on demand, never as a test."""
