"""Broadcasts: messages that every subscription handles."""
