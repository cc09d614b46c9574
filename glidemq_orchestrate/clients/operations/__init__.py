"""The parts of ``Queue`` and ``AsyncQueue``: jobs, listing, administration, usage."""
