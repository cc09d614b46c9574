"""The middleware around the call of a handler, one file each; ``Worker(middleware=...)`` adds more."""
