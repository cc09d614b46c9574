"""What users write against: handlers, their context and signals, middleware, and functions that jobs name."""
