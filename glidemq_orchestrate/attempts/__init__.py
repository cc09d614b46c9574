"""Attempts of jobs: how workers fetch, renew and finish jobs, and how jobs of lost workers are reclaimed."""
