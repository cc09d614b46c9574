"""What happens around the call of a handler, one file each; ``Worker(middleware=...)`` takes more of it."""
