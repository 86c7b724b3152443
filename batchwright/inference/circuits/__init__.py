"""Circuit breakers, one for each model at each backend: their states, the reports they get, and their
metrics.
"""
