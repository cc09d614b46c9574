"""The only room with connections to a server: drives operations on redis-py and translates its errors."""
