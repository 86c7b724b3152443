"""Responses of the simulated backend: their types, texts, values of a JSON schema, and streams of events."""
