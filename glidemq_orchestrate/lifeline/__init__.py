"""What a process starts ends with it, also when it is killed."""
