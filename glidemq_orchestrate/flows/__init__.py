"""A flow: its specification, the check of it, the rules of its nodes, its forms. Pure: no I/O, no server."""
