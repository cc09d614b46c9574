"""The leases of a blocked worker: a process that renews them, and a thread that names what blocks it."""
