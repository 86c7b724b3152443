"""langasync runs a LangChain chain as a batch."""

import asyncio
import os

from langasync import BatchPoller, BatchStatus, LangasyncSettings, batch_chain
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI


async def main() -> None:
    prompt = ChatPromptTemplate.from_messages([("user", "Explain {topic}.")])
    settings = LangasyncSettings(
        openai_base_url=os.environ["OPENAI_BASE_URL"], batch_poll_interval=0.5, base_storage_path="jobs"
    )
    chain = batch_chain(prompt | ChatOpenAI(model=os.environ["MODEL"]), settings)
    await chain.submit([{"topic": str(number)} for number in range(10)])
    async for result in BatchPoller(settings).wait_all():
        assert result.status_info.status == BatchStatus.COMPLETED
        assert len(result.results) == 10


asyncio.run(main())
