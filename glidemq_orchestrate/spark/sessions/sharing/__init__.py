"""What PySpark has once for a context or a process, and each step needs for itself."""
