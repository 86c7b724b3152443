"""Tokens of an OpenID Connect issuer: fetching and caching its public keys, and checking tokens with them."""
