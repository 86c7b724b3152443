"""Whether a part answers."""

import httpx

_SECONDS = 2.0


async def answers(url: str) -> bool:
    """Whether GET `url` is answered with a 2xx."""
    # Proxies of the environment do not lead to the loopback address.
    async with httpx.AsyncClient(trust_env=False, timeout=_SECONDS) as http:
        try:
            return (await http.get(url)).is_success
        except httpx.HTTPError:
            return False
