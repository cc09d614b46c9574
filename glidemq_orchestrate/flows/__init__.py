"""A flow: its specification, its nodes, its generations, and the two ways of running it."""
