"""Output of Spark steps that is safe to repeat: versions of tables and folders, one an accepted result."""
