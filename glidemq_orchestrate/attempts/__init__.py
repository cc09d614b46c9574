"""Running jobs: how workers fetch, renew and finish them, and how lost ones are reclaimed."""
