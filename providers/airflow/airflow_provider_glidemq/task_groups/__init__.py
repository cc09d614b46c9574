"""The provider's task groups."""
