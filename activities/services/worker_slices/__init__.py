"""Decide when a worker takes another slice, searches for a certain slice, or defers a slice."""
