"""The portable path: flows whose queues are in several slots, and servers without our functions."""
