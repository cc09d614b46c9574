"""The provider's connections."""
