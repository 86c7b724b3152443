"""autobatcher turns single calls into batches with a completion window of a day."""

import asyncio
import os

from autobatcher import BatchOpenAI


async def main() -> None:
    async with BatchOpenAI(
        base_url=os.environ["OPENAI_BASE_URL"], completion_window="24h", poll_interval_seconds=0.5
    ) as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model=os.environ["MODEL"], messages=[{"role": "user", "content": f"Hello {number}"}]
                )
                for number in range(10)
            )
        )
    assert all(answer.choices[0].message.content for answer in answers)


asyncio.run(main())
