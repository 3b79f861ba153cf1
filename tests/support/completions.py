"""A server's completions as vLLM streams them: a chunk for each token, the usage, and the end."""

from __future__ import annotations

import json

from tests.support.http_server import Exchange


def complete(exchange: Exchange) -> None:
    """Answers a streamed request with as many tokens as it asks for; a word is a token of the prompt."""
    asked = json.loads(exchange.body)
    exchange.keep = False
    exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    for number in range(asked["max_tokens"]):
        _chunk(exchange, {"choices": [{"index": 0, "text": f" {number}"}]})
    usage = {"prompt_tokens": len(asked["prompt"].split()), "completion_tokens": asked["max_tokens"]}
    _chunk(exchange, {"choices": [], "usage": usage})
    _send(exchange, b"data: [DONE]\n\n")
    exchange.send(b"0\r\n\r\n")


def refuse(exchange: Exchange) -> None:
    exchange.reply(b"no such model", 404)


def _chunk(exchange: Exchange, value: object) -> None:
    _send(exchange, b"data: " + json.dumps(value).encode() + b"\n\n")


def _send(exchange: Exchange, data: bytes) -> None:
    exchange.send(b"%x\r\n%s\r\n" % (len(data), data))
