"""The provider's decorators of tasks."""
