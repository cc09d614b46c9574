"""What all triggers of a triggerer share: one client for each connection, one reader for each queue."""
