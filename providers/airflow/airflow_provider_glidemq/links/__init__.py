"""The links of the provider's operators."""
