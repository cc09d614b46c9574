"""What workers and the server say to each other about jobs that run: fetched, renewed, ended, taken back."""
