"""The Spark session of a process, and the engines that run steps on it."""
