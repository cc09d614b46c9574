"""The provider's message queues."""
