"""Session hosts: child processes of a worker, each with a Spark session that its steps share."""
