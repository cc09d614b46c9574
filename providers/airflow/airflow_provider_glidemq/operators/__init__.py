"""The provider's operators."""
