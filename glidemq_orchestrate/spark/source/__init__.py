"""The data source ``glidemq``: jobs, flows, nodes, elements and events as tables, and rows as jobs."""
