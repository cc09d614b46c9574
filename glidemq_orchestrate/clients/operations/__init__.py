"""The operations of the clients: single jobs, whole queues, and submitting, reading and changing flows."""
