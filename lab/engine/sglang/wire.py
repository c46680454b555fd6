"""Error bodies as the real server words them, and reading a JSON body."""

from __future__ import annotations

import json
from typing import Any

from .http import Request, Response, json_response

# Where the image keeps the engine; the real one tells it to whoever sends malformed JSON.
SOURCE = "/sgl-workspace/sglang/python/sglang/srt/entrypoints/http_server.py"
ROLES = ("system", "assistant", "tool", "function", "developer", "latest_reminder")


class BadRequest(Exception):
    """A request that is answered with an error body."""

    def __init__(self, message: str, kind: str = "BadRequestError", code: int = 400) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code


def error(message: str, kind: str = "BadRequestError", code: int = 400) -> Response:
    """Make the engine's error body."""
    return json_response({"object": "error", "message": message, "type": kind, "param": None, "code": code}, code)


def validation(errors: list[str], where: str, function: str) -> BadRequest:
    """Word a validation error as the framework does, source path included."""
    plural = "error" if len(errors) == 1 else "errors"
    listing = "".join(f"  {entry}\n" for entry in errors)
    return BadRequest(
        f"{len(errors)} validation {plural}:\n{listing}\n"
        f'  File "{SOURCE}", line 1702, in {function}\n    POST {where} [{", ".join(errors)}]',
        "Bad Request",
    )


def read_json(request: Request, function: str) -> dict[str, Any]:
    """Return the JSON object a request brings; raises BadRequest, worded as by the framework."""
    kind = request.headers.get("content-type", "").split(";")[0].strip()
    if kind != "application/json":
        said = "Unsupported Media Type: Only 'application/json' is allowed"
        entry = f"{{'loc': ['header', 'content-type'], 'msg': \"{said}\", 'type': 'value_error'}}"
        raise BadRequest(f"1 validation error:\n  {entry} [{entry}]", "Bad Request")
    try:
        body = json.loads(request.body)
    except ValueError as problem:
        at = getattr(problem, "pos", 0)
        cause = "unexpected end of data" if at >= len(request.body.rstrip()) else str(getattr(problem, "msg", problem))
        raise validation(
            [
                f"{{'type': 'json_invalid', 'loc': ('body', {at}), 'msg': 'JSON decode error', 'input': {{}}, "
                f"'ctx': {{'error': {cause!r}}}}}"
            ],
            request.path,
            function,
        ) from problem
    if not isinstance(body, dict):
        raise validation(
            [
                "{'type': 'model_attributes_type', 'loc': ('body',), 'msg': 'Input should be a valid dictionary or object "
                f"to extract fields from', 'input': {body!r}}}"
            ],
            request.path,
            function,
        )
    return body


def read_messages(body: dict[str, Any], request: Request) -> list[dict[str, Any]]:
    """Return a chat request's messages; raises BadRequest."""
    function = "openai_v1_chat_completions"
    if "messages" not in body:
        seen = {**body, "tool_choice": "auto" if body.get("tools") else "none"}
        raise validation(
            [f"{{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required', 'input': {seen!r}}}"],
            request.path,
            function,
        )
    messages = body["messages"]
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise validation(
            [
                "{'type': 'list_type', 'loc': ('body', 'messages'), 'msg': 'Input should be a valid list', "
                f"'input': {messages!r}}}"
            ],
            request.path,
            function,
        )
    for index, message in enumerate(messages):
        role = message.get("role")
        if role != "user" and str(role).lower() not in ROLES:
            raise validation(_role_errors(index, role), request.path, function)
    if not messages:
        raise BadRequest("Messages cannot be empty.")
    return messages


def _role_errors(index: int, role: Any) -> list[str]:
    said = "'role' must be one of " + ", ".join(f"'{name}'" for name in ROLES) + " (case-insensitive)."
    generic = f"('body', 'messages', {index}, 'function-after[validate_thinking_parts_role(), ChatCompletionMessage"
    return [
        f"{{'type': 'value_error', 'loc': {generic}GenericParam]', 'role'), 'msg': \"Value error, {said}\", "
        f"'input': {role!r}, 'ctx': {{'error': ValueError(\"{said}\")}}}}",
        f"{{'type': 'literal_error', 'loc': {generic}UserParam]', 'role'), 'msg': \"Input should be 'user'\", "
        f"'input': {role!r}, 'ctx': {{'expected': \"'user'\"}}}}",
    ]
