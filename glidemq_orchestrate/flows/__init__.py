"""A flow: its specification, nodes and generations, and the two paths on which it runs."""
