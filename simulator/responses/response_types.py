"""Types of the response bodies. Each field that the backend does not set keeps its default value."""

import msgspec

CREATED = 1_767_225_600  # 2026-01-01; fixed, so that equal bodies get equal responses


class CachedTokens(msgspec.Struct):
    cached_tokens: int


class InputTokens(msgspec.Struct):
    cached_tokens: int
    cache_write_tokens: int = 0


class ReasoningTokens(msgspec.Struct):
    reasoning_tokens: int = 0


class ChatUsage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: InputTokens
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


class ChatCompletion(msgspec.Struct):
    id: str
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage
    object: str = "chat.completion"
    created: int = CREATED
    system_fingerprint: str = "fp_simulator"


class TextChoice(msgspec.Struct):
    index: int
    text: str
    finish_reason: str
    logprobs: None = None


class TextCompletion(msgspec.Struct):
    id: str
    model: str
    choices: list[TextChoice]
    usage: ChatUsage
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


class ResponseObject(msgspec.Struct):
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


class MessageUsage(msgspec.Struct):
    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class TextBlock(msgspec.Struct):
    text: str
    type: str = "text"


class MessageResponse(msgspec.Struct):
    """The response of /v1/messages, as in Anthropic's API."""

    id: str
    model: str
    content: list[TextBlock]
    stop_reason: str
    usage: MessageUsage
    type: str = "message"
    role: str = "assistant"
    stop_sequence: None = None


class PromptUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct):
    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingList(msgspec.Struct):
    data: list[Embedding]
    model: str
    usage: PromptUsage
    object: str = "list"


class Score(msgspec.Struct):
    index: int
    score: float
    object: str = "score"


class ScoreList(msgspec.Struct):
    """The response of /v1/score, as in vLLM."""

    id: str
    data: list[Score]
    model: str
    usage: PromptUsage
    object: str = "list"
    created: int = CREATED


class RankedDocument(msgspec.Struct):
    text: str


class RankedResult(msgspec.Struct):
    index: int
    document: RankedDocument
    relevance_score: float


class Ranking(msgspec.Struct):
    """The response of /v1/rerank, as in vLLM, Jina and Cohere."""

    id: str
    results: list[RankedResult]
    model: str
    usage: PromptUsage


class ModerationResult(msgspec.Struct):
    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[str]]


class Moderation(msgspec.Struct):
    id: str
    model: str
    results: list[ModerationResult]


class Image(msgspec.Struct):
    b64_json: str


class ImageList(msgspec.Struct):
    data: list[Image]
    created: int = CREATED


class Video(msgspec.Struct):
    id: str
    model: str
    prompt: str | None
    seconds: str
    size: str
    object: str = "video"
    created_at: int = CREATED
    status: str = "queued"
    progress: int = 0
    completed_at: None = None
    expires_at: None = None
    error: None = None
    remixed_from_video_id: None = None


class SimulatedModel(msgspec.Struct):
    id: str
    object: str = "model"
    created: int = CREATED
    owned_by: str = "simulator"


class SimulatedModelList(msgspec.Struct):
    data: list[SimulatedModel]
    object: str = "list"


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    error: ErrorDetail


class MessageError(msgspec.Struct):
    message: str
    type: str


class MessageErrorBody(msgspec.Struct):
    """An error of /v1/messages, as in Anthropic's API."""

    error: MessageError
    type: str = "error"
