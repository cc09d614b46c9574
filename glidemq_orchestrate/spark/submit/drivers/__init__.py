"""Drivers of ``spark.submit`` jobs: a keeper keeps each alive until the next worker takes it over."""
