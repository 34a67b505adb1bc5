"""Differences of servers that are called compatible: the real answers of each.

Sources: the issues of openai, vllm, ollama, llama.cpp, qwen-code and lmstudio-bug-tracker.
"""

from __future__ import annotations

from typing import Any

from tests.summarizers.server import Answering, Reply, Request, changed, says, usage


def error(status: int, message: str, code: Any = None, **more: Any) -> Reply:
    """An error as OpenAI writes it."""
    kind = {"type": "invalid_request_error", "param": None}
    return Reply({"error": {"message": message, "code": code, **kind, **more}}, status)


def openai(content: Any) -> Answering:
    return changed(
        says(content, refusal=None, annotations=[]), service_tier="default", system_fingerprint="fp"
    )


def dashscope(content: Any) -> Answering:
    return changed(says(content), system_fingerprint="", id="chatcmpl-0f3c")


def vllm(content: Any) -> Answering:
    return changed(
        says(content, reasoning_content=None, tool_calls=[], refusal=None), kv_transfer_params={}
    )


def ollama(content: Any) -> Answering:
    return changed(says(content, reasoning="first I think"), system_fingerprint="fp_ollama")


GOOD = {"openai": openai, "dashscope": dashscope, "vllm": vllm, "ollama": ollama}

TOO_LONG = {
    "openai": error(
        400,
        "This model's maximum context length is 128000 tokens. However, your messages resulted in "
        "204308 tokens. Please reduce the length of the messages.",
        "context_length_exceeded",
        param="messages",
    ),
    "openai, newer": error(
        400,
        "Your input exceeds the context window of this model. Please adjust your input.",
        "context_length_exceeded",
    ),
    "openai, a minute's share": error(
        429,
        "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 42000.",
        "rate_limit_exceeded",
    ),
    "dashscope": error(
        400,
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]",
        "invalid_parameter_error",
    ),
    "vllm": Reply(
        {
            "object": "error",
            "message": "This model's maximum context length is 16384 tokens. However, you "
            "requested 122946 tokens (112946 in the messages, 10000 in the completion).",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
        400,
    ),
    "vllm, engine": error(
        400, "The decoder prompt (length 21535) is longer than the maximum model length of 16384."
    ),
    "vllm, no room": error(400, "max_tokens must be at least 1, got -186.", 400),
    "ollama": error(400, "the input length exceeds the context length"),
    "llama.cpp": error(
        400,
        "request (4390 tokens) exceeds the available context size (4096 tokens), try increasing it",
        400,
        type="exceed_context_size_error",
    ),
    "llama.cpp, later": error(500, "Context size has been exceeded.", 500, type="server_error"),
    "llama-cpp-python": error(400, "Requested tokens (2285) exceed context window of 2048"),
    "openrouter": error(400, "This endpoint's maximum context length is 32768 tokens.", 400),
    "lm studio": Reply(
        {
            "error": "Trying to keep the first 15857 tokens when context the overflows. However, "
            "the model is loaded with context length of only 4096 tokens"
        }
    ),
    "a proxy": Reply(b"<html>Request Entity Too Large</html>", 413, {"content-type": "text/html"}),
}

NO_MODEL = {
    "openai": error(
        404, "The model `m` does not exist or you do not have access to it.", "model_not_found"
    ),
    "vllm": Reply({"object": "error", "message": "The model `m` does not exist."}, 404),
    "ollama": error(404, 'model "m" not found, try pulling it first', type="api_error"),
    "a wrong path": Reply({"detail": "Not Found"}, 404),
}

NO_CREDIT = {
    "openai": error(429, "You exceeded your current quota.", "insufficient_quota"),
    "dashscope": error(400, "Access denied, please make sure your account is in good standing.",
                       "Arrearage"),
    "deepseek": error(402, "Insufficient Balance", "invalid_request_error"),
    "openrouter": error(402, "This request requires more credits, or fewer max_tokens.", 402),
}  # fmt: skip

NO_SCHEMA = {
    "openai": "Invalid parameter: 'response_format' of type 'json_schema' is not supported with "
    "this model.",
    "deepseek": "This response_format type is unavailable now",
    "dashscope": "Json mode response is not supported when enable_thinking is true",
    "vllm": "Failed to compile the grammar of the guided decoding request",
}


def without_forms(*refused: str, message: str, good: Answering) -> Answering:
    """A server that refuses some values of ``response_format.type``."""

    def answer(request: Request) -> Reply:
        if request.form in refused:
            return error(400, message, "invalid_parameter_error")
        return good(request)

    return answer


def cut_to(window: int, good: Answering) -> Answering:
    """Ollama, whose ``num_ctx`` is smaller than the prompt: it reads half a window."""

    def answer(request: Request) -> Reply:
        read = request.tokens if request.tokens <= window else window // 2
        return Reply(good(request).body | {"usage": usage(read, 100)})

    return answer
