"""Contracts between the processes.

`terms`, `errors` and `calls` are shared by all of them. `objects/` is what the HTTP API returns, `payloads/`
what Temporal stores, and `registry/` what operators configure of models.
"""
