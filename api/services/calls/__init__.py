"""Services for single calls (requests that clients send without a batch): accept and send them, and keep the
connections of waiting clients open.
"""
