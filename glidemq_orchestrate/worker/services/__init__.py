"""The services that users start: worker, broadcast worker and supervisor, on one base."""
