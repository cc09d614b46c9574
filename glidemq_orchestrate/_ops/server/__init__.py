"""Use cases of the server itself: its function libraries, its health, its time."""
