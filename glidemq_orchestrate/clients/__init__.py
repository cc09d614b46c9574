"""The public client classes, each with an async twin. Their methods delegate to the lower packages."""
