"""Other forms of a flow: files, graphs, drawings, trees."""
