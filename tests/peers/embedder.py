"""Embeddings server: LitServe with a model of the package WordLlama.

It needs a Python that has both packages. `python embedder.py PORT` serves only /v1/embeddings, and lists no
models.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

litserve: Any = importlib.import_module("litserve")  # not among our libraries
wordllama: Any = importlib.import_module("wordllama")


class Embedder(litserve.LitAPI):
    def setup(self, device: str) -> None:
        folder = Path(wordllama.__file__).parent
        self.model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)

    def predict(self, inputs: str | list[str]) -> Any:
        return self.model.embed(inputs)


if __name__ == "__main__":
    server = litserve.LitServer(Embedder(spec=litserve.OpenAIEmbeddingSpec()), accelerator="cpu")
    server.run(port=int(sys.argv[1]), host="127.0.0.1", generate_client_file=False, num_api_servers=1)
