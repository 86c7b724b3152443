"""Check tokens of an OpenID Connect issuer, with the issuer's public keys, which are fetched and cached."""
