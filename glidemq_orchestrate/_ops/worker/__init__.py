"""What workers and supervisors do for the queues that they serve."""
