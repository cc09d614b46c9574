"""A job: its options, its record, its states, and the calls that add, read and change it."""
