"""The vocabulary of the wire: calls as values, replies, keys and JSON. Pure."""
