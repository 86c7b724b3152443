"""Slices that a worker holds: when it takes another one, searches for one, or defers one."""
