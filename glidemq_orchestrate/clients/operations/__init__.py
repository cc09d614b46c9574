"""The operations of the clients: producers, flows, whole queues, single jobs."""
