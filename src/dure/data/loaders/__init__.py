"""Loaders: each finds data that are already on this machine, checks them, and says how to get them if not."""
