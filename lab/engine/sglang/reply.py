"""What the simulated model says: a fixed function of the request, useful for checks. The rules are in the README.

A check never needs to know the simulation: sums are right, what was asked to be repeated is repeated, what stands in a long
prompt is found, pictures are described, tools are called when the question fits one.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass, field
from typing import Any

from .picture import describe

FACTS = {
    "capital of france": "Paris",
    "capital of germany": "Berlin",
    "capital of japan": "Tokyo",
    "capital of china": "Beijing",
    "capital of italy": "Rome",
    "法国的首都": "巴黎",
    "中国的首都": "北京",
    "color of the sky": "blue",
    "colour of the sky": "blue",
    "largest planet": "Jupiter",
    "boiling point of water": "100 degrees Celsius",
    "days in a week": "seven",
    "opposite of hot": "cold",
}
OPERATORS = {
    "plus": "+",
    "minus": "-",
    "times": "*",
    "multiplied by": "*",
    "divided by": "/",
    "加": "+",
    "减": "-",
    "乘": "*",
    "除以": "/",
}
# Multiplication and division signs as people write them, by code point: they look like letters.
TIMES, OVER = "\u00d7", "\u00f7"
SUM = re.compile(r"-?\d+(?:\.\d+)?(?:\s*[-+*/x\u00d7\u00f7]\s*\d+(?:\.\d+)?)+")
ECHO = re.compile(
    r"(?:reply|answer|respond)(?: only)? with(?: exactly| only| just)*(?: the words?)?:?\s*[\"'“]?(.+?)[\"'”]?[.!]?$",
    re.I | re.S,
)
SAY = re.compile(r"^(?:please )?(?:say|repeat|echo)(?: after me)?:?\s+[\"'“]?(.+?)[\"'”]?[.!]?$", re.I | re.S)
NEEDLE = re.compile(
    r"\b((?:\w+ ){0,3}(?:code|number|key|password|passphrase|word|needle|token|name|colou?r))"
    r"\s+(?:is|was|=|:)\s*[\"']?([\w-]+)",
    re.I,
)
LONG = re.compile(
    r"\b(?:explain|essay|story|detail|write|describe|list|poem|article|in depth|at length)\b|详细|文章|故事", re.I
)
CHINESE = re.compile("[\u4e00-\u9fff]")
COUNT = re.compile(r"count (?:from (\d+) )?(?:up )?to (\d+)", re.I)
SENTENCES = (
    "A server that keeps the prefix of a conversation answers the next turn sooner.",
    "Memory is shared out before the first request arrives, so every later one fits or waits.",
    "A queue that grows is a sign of too few slots, not of a slow card.",
    "What was measured once should be measured again after every change.",
    "A short check can pass where a long prompt fails, which is why both are needed.",
    "The smaller part proposes a few words, and the larger one accepts those that it would have said.",
    "Neighbours on the same machine notice a restart before the operator does.",
    "An open port proves only that something listens.",
)


@dataclass
class Answer:
    """What the model thinks, says and calls; calls are (name, arguments)."""

    reasoning: str
    content: str
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


def text_of(content: Any) -> str:
    """Return the text of a message's content, whatever its form."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict) and part.get("type") == "text")
    return ""


def images_of(messages: list[dict[str, Any]]) -> list[str]:
    """Return the URLs of all pictures in the conversation."""
    return [
        str((part.get("image_url") or {}).get("url", ""))
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
        if isinstance(part, dict) and part.get("type") == "image_url"
    ]


def arithmetic(question: str) -> str | None:
    """Work out the first sum in a question; None when there is none."""
    text = re.sub(r"\d{4}-\d\d-\d\d", "", question.lower())  # a date is no subtraction
    for word, sign in OPERATORS.items():
        text = text.replace(word, f" {sign} ")
    pair = re.search(r"(?:sum|product) of (\d+) and (\d+)", text)
    found = SUM.search(text)
    if pair:
        expression = f"{pair[1]} {'+' if 'sum' in pair[0] else '*'} {pair[2]}"
    elif found:
        expression = found[0]
    else:
        return None
    parts = re.findall(r"\d+(?:\.\d+)?|[-+*/x\u00d7\u00f7]", expression.translate(str.maketrans(f"x{TIMES}{OVER}", "**/")))
    if parts and parts[0] == "-":
        parts = ["-" + parts[1], *parts[2:]]
    numbers, signs = [float(part) for part in parts[0::2]], parts[1::2]
    for group in ("*/", "+-"):
        at = 0
        while at < len(signs):
            if signs[at] not in group:
                at += 1
                continue
            left, right = numbers[at], numbers[at + 1]
            if signs[at] == "/" and right == 0:
                return None
            numbers[at : at + 2] = [
                {"*": left * right, "+": left + right, "-": left - right}.get(signs[at], left / (right or 1))
            ]
            del signs[at]
    return f"{expression.strip()} = {numbers[0]:.10g}"


def _fitting(tools: list[dict[str, Any]], question: str) -> dict[str, Any] | None:
    """Return the first tool with a telling word in common with the question."""
    asked = set(re.findall(r"[a-z]{4,}|[\u4e00-\u9fff]", question.lower()))
    for tool in tools:
        function = tool.get("function", tool)
        about = f"{function.get('name', '')} {function.get('description', '')}".lower().replace("_", " ")
        if asked & (
            set(re.findall(r"[a-z]{4,}|[\u4e00-\u9fff]", about)) - {"this", "that", "with", "from", "given", "tool", "call"}
        ):
            return dict(function)
    return None


def example(schema: dict[str, Any], question: str, name: str = "") -> Any:
    """Return a value that fits a JSON schema, taken from the question where it can be."""
    if "enum" in schema:
        return next((value for value in schema["enum"] if str(value).lower() in question.lower()), schema["enum"][0])
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties", {})
        wanted = schema.get("required", list(properties))
        return {key: example(properties.get(key, {}), question, key) for key in wanted}
    if kind == "array":
        return [example(schema.get("items", {}), question, name)]
    numbers = re.findall(r"-?\d+(?:\.\d+)?", question)
    if kind == "integer":
        return int(float(numbers[0])) if numbers else 1
    if kind == "number":
        return float(numbers[0]) if numbers else 1.0
    if kind == "boolean":
        return True
    if kind == "null":
        return None
    quoted = re.search(r"[\"'“]([^\"'”]+)[\"'”]", question)
    proper = re.findall(r"(?<=[a-z,:] )[A-Z][\w-]+", question)
    place = re.search(r"\b(?:in|for|at|of|to)\s+([A-Z][\w-]+)", question)
    return (quoted and quoted[1]) or (place and place[1]) or (proper[0] if proper else question.strip()[:40] or name)


def _plain(question: str, context: str, at_length: str) -> str:
    """Answer a question with no tool and no picture."""
    lowered = question.lower()
    worked = arithmetic(question)
    echo = ECHO.search(question.strip()) or SAY.search(question.strip())
    count = COUNT.search(question)
    if worked:
        return worked + ("。" if CHINESE.search(question) else ".")
    if echo:
        return echo[1].strip()
    for asked, known in FACTS.items():
        if asked in lowered:
            return f"{known}."
    needle = _needle(question, context)
    if needle:
        return needle
    if count:
        return ", ".join(str(number) for number in range(int(count[1] or 1), min(int(count[2]), 2000) + 1)) + "."
    if LONG.search(question):
        return at_length
    if CHINESE.search(question):
        return f"关于「{question.strip()[:24]}」\uff1a可以\uff0c这是一个简短的回答。"
    words = " ".join(question.split()[:10])
    return f"You asked: {words}. In short: yes, it works, and this is the answer."


def _needle(question: str, context: str) -> str | None:
    """Find what a long text says a code, number or name is, if the question's last sentence asks for it."""
    sentences = [part for part in re.split(r"[\n.!?]+", question) if part.strip()]
    asked = set(re.findall(r"[a-z]{3,}", sentences[-1].lower())) - {"what", "the", "which", "was"} if sentences else set()
    best: tuple[int, str] | None = None
    for match in NEEDLE.finditer(context):
        label, value = match[1].lower(), match[2]
        shared = len(asked & set(re.findall(r"[a-z]{3,}", label)))
        if shared and value.lower() not in asked and (best is None or shared >= best[0]):
            best = (shared, f"The {label.removeprefix('the ')} is {value}.")
    return best[1] if best else None


def long_text(seed: int, sentences: int) -> str:
    """Return so many sentences in an order that the seed decides."""
    return " ".join(SENTENCES[(seed + 3 * step + step // len(SENTENCES)) % len(SENTENCES)] for step in range(sentences))


def answer(messages: list[dict[str, Any]], tools: list[dict[str, Any]], choice: Any, schema: dict[str, Any] | None) -> Answer:
    """Return the model's whole reply to a conversation."""
    last = messages[-1] if messages else {"role": "user", "content": ""}
    question = next((text_of(message.get("content")) for message in reversed(messages) if message.get("role") == "user"), "")
    context = "\n".join(text_of(message.get("content")) for message in messages)
    seed = zlib.crc32(context.encode("utf-8", "replace"))
    thought = (
        f"The request is: {' '.join(question.split()[-16:])}. I look at what is given, work it out, and then answer briefly."
    )
    if tools and choice != "none":
        forced = isinstance(choice, dict) or choice == "required"
        named = choice.get("function", {}).get("name") if isinstance(choice, dict) else None
        offered = [tool for tool in tools if named is None or tool.get("function", {}).get("name") == named] or tools
        function = _fitting(offered, question) or (dict(offered[0].get("function", offered[0])) if forced else None)
        if function and (forced or last.get("role") != "tool"):
            arguments = example({"type": "object", **(function.get("parameters") or {})}, question)
            return Answer(f"{thought} The tool {function['name']} gives that.", "", [(str(function["name"]), arguments)])
    if schema is not None:
        return Answer(thought, json.dumps(example(schema, question), ensure_ascii=False))
    if last.get("role") == "tool":
        return Answer(thought, f"The tool says: {text_of(last.get('content')).strip()}")
    pictures = images_of(messages)
    if pictures:
        return Answer(thought, " ".join(describe(picture) for picture in pictures))
    wanted = re.search(r"(\d{2,5}) words", question)
    return Answer(thought, _plain(question, context, long_text(seed, int(wanted[1]) // 10 if wanted else 40)))


def garbage(seed: int) -> Answer:
    """Return what an engine says whose numbers are wrong: text, but none that answers."""
    # Letters only: a number could be right by accident.
    letters = str.maketrans("0123456789", "ghijklmnop")
    noise = " ".join(f"{zlib.crc32(bytes([step]), seed + step):08x}"[:5].translate(letters) for step in range(24))
    return Answer(noise[:40], noise)
