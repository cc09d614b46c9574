"""Forms of a flow outside Python: files, graphs, drawings, trees."""
