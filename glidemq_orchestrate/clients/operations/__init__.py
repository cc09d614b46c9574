"""The operations of the clients: those of queues, a file for each subject; producers and flows."""
