"""Running the handler of an attempt, wherever it runs, and making an outcome of what it does."""
