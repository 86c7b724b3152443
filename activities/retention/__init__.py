"""Retention: delete expired data and data of crashed processes.

An activity deletes data for about ten seconds (a turn). The next activity continues where it stopped.
"""
