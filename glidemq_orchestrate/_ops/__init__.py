"""Use cases as generators of calls. No I/O, no clock of their own, no randomness: those are arguments."""
