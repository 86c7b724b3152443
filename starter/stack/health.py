"""Whether a part answers."""

import httpx

_SECONDS = 2.0


async def answers(url: str) -> bool:
    """Whether GET `url` is answered with a 2xx."""
    # Proxies of the environment do not lead to the loopback address. Certificates are read for each client:
    # several parts are asked many times a second while they start, and none of them speaks TLS.
    async with httpx.AsyncClient(trust_env=False, timeout=_SECONDS, verify=False) as http:
        try:
            return (await http.get(url)).is_success
        except httpx.HTTPError:
            return False
