"""Use cases about the server itself: its function libraries, its fitness, its time."""
