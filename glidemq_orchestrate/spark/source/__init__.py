"""The data source ``glidemq``: jobs, flows, nodes and events as tables, and rows as jobs."""
