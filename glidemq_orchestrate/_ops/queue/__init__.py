"""Use cases of queues and of single jobs."""
