"""Tables by subject. Each file has the Protocol of a table or of queries, and its PostgreSQL class below.

`operations/` holds what concerns all tenants at once. The SQL of a file is in `queries/` under the same name.
"""
