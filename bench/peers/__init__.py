"""Peers: alternatives to Batchwright that a user would write or install.

Each peer runs in a separate process.
"""
