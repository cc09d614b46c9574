"""Use cases of workers and supervisors: what they do for their queues."""
