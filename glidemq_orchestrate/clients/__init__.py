"""The classes that users call: each method one line, with its async twin. The rooms below do the work."""
