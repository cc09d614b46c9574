"""The jobs that a worker holds: which of them run, which wait, and which go back."""
