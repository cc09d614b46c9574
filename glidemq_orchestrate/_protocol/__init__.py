"""What is said to the server: calls as values, one builder per function, the reading of replies."""
