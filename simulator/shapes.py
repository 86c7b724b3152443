"""The shapes of OpenAI's answers, with what never changes filled in."""

import msgspec

CREATED = 1_767_225_600  # 2026-01-01: with a clock two answers to one body would differ


class CachedTokens(msgspec.Struct):
    cached_tokens: int


class ReasoningTokens(msgspec.Struct):
    reasoning_tokens: int = 0


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ChatMessage(msgspec.Struct):
    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct):
    index: int
    message: ChatMessage
    finish_reason: str
    logprobs: None = None


class Chat(msgspec.Struct):
    id: str
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: str = "chat.completion"
    created: int = CREATED
    system_fingerprint: str = "fp_simulator"


class TextChoice(msgspec.Struct):
    index: int
    text: str
    finish_reason: str
    logprobs: None = None


class Completion(msgspec.Struct):
    id: str
    model: str
    choices: list[TextChoice]
    usage: Usage
    object: str = "text_completion"
    created: int = CREATED


class OutputText(msgspec.Struct):
    text: str
    type: str = "output_text"
    annotations: tuple[()] = ()
    logprobs: tuple[()] = ()


class OutputMessage(msgspec.Struct):
    id: str
    content: list[OutputText]
    type: str = "message"
    status: str = "completed"
    role: str = "assistant"


class Response(msgspec.Struct):
    id: str
    model: str
    output: list[OutputMessage]
    usage: ResponseUsage
    object: str = "response"
    created_at: int = CREATED
    status: str = "completed"
    error: None = None
    incomplete_details: None = None
    instructions: None = None
    metadata: None = None
    parallel_tool_calls: bool = True
    temperature: float = 1.0
    tool_choice: str = "auto"
    tools: tuple[()] = ()
    top_p: float = 1.0


class PromptUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct):
    index: int
    embedding: list[float] | str
    object: str = "embedding"


class Embeddings(msgspec.Struct):
    data: list[Embedding]
    model: str
    usage: PromptUsage
    object: str = "list"


class Verdict(msgspec.Struct):
    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]


class Moderation(msgspec.Struct):
    id: str
    model: str
    results: list[Verdict]


class Image(msgspec.Struct):
    b64_json: str


class Images(msgspec.Struct):
    data: list[Image]
    created: int = CREATED


class Video(msgspec.Struct):
    id: str
    model: str
    object: str = "video"
    created_at: int = CREATED
    status: str = "queued"
    progress: int = 0
    seconds: str = "4"
    size: str = "720x1280"


class Model(msgspec.Struct):
    id: str
    object: str = "model"
    created: int = CREATED
    owned_by: str = "simulator"


class Models(msgspec.Struct):
    data: list[Model]
    object: str = "list"


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class Error(msgspec.Struct):
    error: ErrorDetail
