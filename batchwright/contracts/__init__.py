"""Contracts between the processes: messages, activities, API objects, names in Temporal, and the registry."""
