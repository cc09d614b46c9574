"""Flows within one slot: the server does everything, by functions of ours."""
