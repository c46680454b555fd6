"""What --log-requests prints: from level 2 on, which is the default, prompts and answers are in it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from . import journal
from .options import ServerArgs

SHOWN = 2048  # characters of a text at level 2; level 3 shows it whole


def _text(args: ServerArgs, text: str) -> str | None:
    if args.log_requests_level < 2:
        return None
    return text if args.log_requests_level > 2 else text[:SHOWN]


def _object(args: ServerArgs, rid: str, asked: str, sampling: dict[str, Any], stream: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"rid": rid, "stream": stream}
    if args.log_requests_level >= 1:
        found["sampling_params"] = sampling
    text = _text(args, asked)
    return found if text is None else {**found, "text": text}


def _write(args: ServerArgs, event: str, rid: str, data: dict[str, Any]) -> None:
    if args.log_requests_format == "json":
        line = {"timestamp": datetime.now().astimezone().isoformat(), "event": f"request.{event}", "rid": rid, **data}
        journal.line(json.dumps(line, ensure_ascii=False))
    else:
        word = "Receive" if event == "received" else "Finish"
        journal.line(f"{word}: " + ", ".join(f"{key}={value}" for key, value in data.items()))


def received(args: ServerArgs, rid: str, asked: str, sampling: dict[str, Any], stream: bool) -> None:
    """Log a request that came."""
    if args.log_requests:
        _write(args, "received", rid, {"obj": _object(args, rid, asked, sampling, stream)})


def finished(
    args: ServerArgs, rid: str, asked: str, sampling: dict[str, Any], stream: bool, said: str, meta: dict[str, Any]
) -> None:
    """Log a request that was answered."""
    if args.log_requests:
        text = _text(args, said)
        out = {"meta_info": meta} if text is None else {"text": text, "meta_info": meta}
        _write(args, "finished", rid, {"obj": _object(args, rid, asked, sampling, stream), "out": out})
