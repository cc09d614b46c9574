"""The demo: the flights pipeline with a real orchestrator, Valkey and Spark."""
