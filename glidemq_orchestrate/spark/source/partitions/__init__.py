"""Tables of jobs, flows, nodes and events in parts that several processes read, each in pages."""
