"""Shared by all triggers of a triggerer: one client for each connection, one reader for each queue."""
