"""What runs jobs: the worker and its parts, the supervisor, the broadcast worker."""
