"""The demonstration: the flights pipeline through a real orchestrator, Valkey and Spark."""
