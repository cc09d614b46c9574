"""The only package that talks to a server: drives operations on redis-py and translates its errors."""
