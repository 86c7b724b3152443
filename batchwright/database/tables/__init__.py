"""Tables by subject. Each file has the Protocol of a table or of queries, and the PostgreSQL class that
implements it.

`operations/` has tables and queries over all tenants. The SQL of a file is in `queries/` under the same name.
"""
