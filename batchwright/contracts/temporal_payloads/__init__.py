"""Payloads of workflows and activities, and the declarations of the activities, by phase of a batch."""
