"""The provider's notifications."""
