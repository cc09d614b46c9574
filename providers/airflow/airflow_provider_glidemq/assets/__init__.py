"""The provider's assets."""
