"""Use cases of flows, one module each. A flow is kept by the staged path or by the portable one."""
