"""The interface for user code: handlers, contexts, signals, middleware, and functions that jobs name."""
