"""Limits that decide when a request may be sent.

They limit the requests in flight (by model, by backend and over all models), the rates, the tenants' shares,
and the memory.
"""
