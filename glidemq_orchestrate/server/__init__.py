"""The server itself: its function libraries, rights, time, durability, and checks of all these."""
