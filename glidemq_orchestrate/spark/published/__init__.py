"""Output of Spark steps that is safe to repeat: each accepted result makes one version."""
