"""The provider's task decorators."""
