"""The classes that users call: each method one line, with its async twin. The work is done in ``_ops``."""
