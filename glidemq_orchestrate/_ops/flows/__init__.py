"""Use cases of flows, one module each. A flow takes the staged path or the portable one."""
