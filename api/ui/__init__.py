"""Pages for browsers at `/ui`: batches, their lines and files.

The pages are a client of the API in the same process: each calls the API's own routes, with the rights of the
visitor, and renders the response with a template. So a page shows and does only what the visitor's key may.

The pages need no JavaScript. With it, htmx replaces parts of a page by fragments that the server streams.
"""
