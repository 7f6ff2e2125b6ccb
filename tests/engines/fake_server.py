"""A fake vLLM server that fails on demand."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from vagentrl.engines.base import Generation
from vagentrl.engines.vllm.weights import files_in


class FakeServer:
    """Stands in for a vLLM server: replies, fails and restarts as a test sets it.

    Attributes:
        calls: Paths of all calls, in order.
        served: Version of the weights behind each reply.
        version: Version of the current weights.
        reports: Whether replies include that version.
        down: Number of further calls that are answered with 503.
        held: Number of further calls to reset the prefix cache that fail.
        stalled: While set, the server answers nothing.
        drops: Number of further connections that are closed without an answer.
        reply: The reply to every prompt.
        refuse: Message with which prompts are refused; empty to answer them.
        sees_files: Whether it sees the folder of the weights.
        same: Result of comparing the weights.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.served: list[str] = []
        self.version = "default"
        self.reports = True
        self.down = 0
        self.held = 0
        self.stalled = threading.Event()
        self.drops = 0.0
        self.reply: dict[str, Any] = {}
        self.refuse = ""
        self.sees_files = True
        self.same = {"model.norm.weight": True}

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        while self.stalled.is_set():
            time.sleep(0.01)
        if self.down > 0:
            self.down -= 1
            if self.down == 0:
                self.version = "default"  # a restarted server has lost the weights
            return 503, {"error": "EngineDeadError"}
        self.calls.append(path)
        if path == "/inference/v1/generate":
            return self.generate(body)
        if path == "/reset_prefix_cache":
            self.held -= 1
            return 200, {"success": self.held < 0}
        if path == "/update_weight_version":
            self.version = body["new_version"]
        if path == "/weight_info":
            return 200, {"weight_version": self.version}
        if path == "/collective_rpc" and body["method"] == "vagentrl_load":
            return 200, {"results": [files_in(body["args"][0]) if self.sees_files else []]}
        return 200, {"results": [self.same]}

    def generate(self, body: Any) -> tuple[int, Any]:
        if self.refuse:
            return 400, {"error": self.refuse}
        self.served.append(self.version)
        span = {"version": self.version, "start": 0, "end": 16}
        [choice] = self.reply["choices"]
        versions = {"weight_versions": [span]} if self.reports else {}
        return 200, self.reply | {"choices": [choice | versions]}


@contextmanager
def running(fake: FakeServer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length) or b"null")
            if fake.drops > 0:
                fake.drops -= 1
                self.close_connection = True
                return
            status, answer = fake.answer(self.path, body)
            payload = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()


def as_json(reply: Generation) -> dict[str, Any]:
    content = [{"token_id": 0, "logprob": logprob} for logprob in reply.logprobs]
    choice = {
        "token_ids": list(reply.reply_ids),
        "logprobs": {"content": content},
        "finish_reason": reply.finish,
    }
    return {"choices": [choice], "usage": {"prompt_tokens_details": {"cached_tokens": 3}}}
