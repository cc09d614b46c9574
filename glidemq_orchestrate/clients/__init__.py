"""What users call: each method one line, the async one beside it. The work is done in ``_ops``."""
