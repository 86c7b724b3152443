"""Routes for single calls (requests without a batch). They turn a call into a line of a batch, or send it to
a backend immediately.
"""
