"""Pages for browsers at `/ui`: batches, their lines and files.

The pages are a client of the API in the same process. A page calls the API's own routes with the rights of
the visitor, and renders the responses with a template. So a page can show and do only what the visitor's key
allows. The pages work without JavaScript. With JavaScript, the library htmx replaces parts of a page by HTML
that the server streams.
"""
