"""The provider's sensors."""
