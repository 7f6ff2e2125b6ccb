"""A fake OpenAI-compatible server with scripted answers and failures.

    python -m tests.chat_server --latency_s 0.2    # for benchmarks: prints its URL, answers YES

It uses only the standard library.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Answer:
    """An HTTP answer.

    Attributes:
        status: The HTTP status.
        body: The body.
        headers: Additional headers.
        delay_s: Seconds before the answer starts.
        cut: Close the connection after this many bytes of the body.
        drip_s: Seconds between one byte of the body and the next.
    """

    status: int = 200
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    cut: int | None = None
    drip_s: float = 0.0


@dataclass(frozen=True)
class Request:
    """A request: the path, the headers (names in lower case) and the fields of the JSON body."""

    path: str
    headers: Mapping[str, str]
    fields: Mapping[str, Any]

    @property
    def prompt(self) -> str:
        return self.fields["messages"][-1]["content"]


def completion(text: str | None, *, finish: str = "stop", metered: bool = True) -> str:
    """Return the body of a chat completion with 10 prompt tokens and 5 reply tokens."""
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return json.dumps(
        {
            "id": "1", "object": "chat.completion", "created": 0, "model": "fake",
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        }
        | ({"usage": usage} if metered else {})
    )  # fmt: skip


def says(text: str | None, **how: Any) -> Answer:
    return Answer(body=completion(text, **how))


def refuses(status: int, message: str = "no", code: str | None = None, **headers: str) -> Answer:
    body = {"error": {"message": message, "type": "error", "param": None, "code": code}}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, json.dumps(body), named)


class ChatServer:
    """A server whose answers are a function of the request.

    Attributes:
        answer: Maps a request to its answer.
        requests: Every request, in order of arrival.
        most_at_once: The largest number of requests that were in progress at a time.
    """

    def __init__(self, answer: Callable[[Request], Answer]) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.most_at_once = 0
        self._at_once = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer all requests of one connection."""
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client went away, or the server is closed
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (li.partition(":") for li in lines)
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        request = Request(first.split()[1], headers, json.loads(body or b"{}"))
        self.requests.append(request)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            return await self._write(self.answer(request), writer)
        finally:
            self._at_once -= 1

    async def _write(self, answer: Answer, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(answer.delay_s)
        body = answer.body.encode()
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        lines = [f"{name}: {value}" for name, value in (headers | dict(answer.headers)).items()]
        writer.write("\r\n".join([f"HTTP/1.1 {answer.status} X", *lines, "", ""]).encode())
        pieces = [bytes([byte]) for byte in body] if answer.drip_s else [body[: answer.cut]]
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(answer.drip_s)
        return answer.cut is None


@contextmanager
def serving(*answers: Answer | Callable[[Request], Answer]) -> Iterator[tuple[ChatServer, str]]:
    """Run a server on this machine; yield the server and its URL.

    It gives these answers in turn and then repeats the last one. A function is called with the
    request and returns the answer.
    """
    turns = iter(answers)
    current: list[Answer | Callable[[Request], Answer]] = []

    def answer(request: Request) -> Answer:
        current[:] = [next(turns, *current)]
        given = current[0]
        return given(request) if callable(given) else given

    server = ChatServer(answer)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    opening = asyncio.start_server(server.serve, "127.0.0.1", 0)
    listening = asyncio.run_coroutine_threadsafe(opening, loop).result()
    port = listening.sockets[0].getsockname()[1]
    try:
        yield server, f"http://127.0.0.1:{port}/v1"
    finally:
        asyncio.run_coroutine_threadsafe(_close(listening), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _close(listening: asyncio.Server) -> None:
    listening.close()
    ours = asyncio.current_task()
    connections = [task for task in asyncio.all_tasks() if task is not ours]
    for connection in connections:
        connection.cancel()
    await asyncio.gather(*connections, return_exceptions=True)


# --------------------------------------------------------------------------------- benchmarks


async def _serve_for_ever(latency_s: float) -> None:
    def answer(request: Request) -> Answer:
        code = re.search(r"ANSWER (\w+): YES", request.prompt)
        text = f"ANSWER {code[1]}: YES" if code else "yes"
        return Answer(body=completion(text), delay_s=latency_s)

    server = ChatServer(answer)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1", flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A fake chat server.")
    parser.add_argument("--latency_s", type=float, default=0.2)
    asyncio.run(_serve_for_ever(parser.parse_args().latency_s))
