"""Limits that decide when a request may be sent.

They limit the requests in flight (by model, by backend and over all models), the requests and tokens per
minute, the share of the capacity that each tenant gets, and the memory.
"""
