"""A job: its options, its record, when it runs again, what it used. Pure: no I/O, no server."""
