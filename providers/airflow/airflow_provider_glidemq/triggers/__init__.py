"""The provider's triggers."""
