"""The wire protocol: calls as values, a builder for each server function, and the decoding of replies."""
