"""An engine with a profiler endpoint: vLLM of several generations, SGLang, trtllm-serve; in all the ways they fail.

Run as `python engine.py LOG KIND FOLDER BEHAVIOUR RANKS`; writes its port as a line. Every request goes to LOG as a
line of JSON. FOLDER is where vLLM was told to write.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BEHAVIOURS = {
    "good": "writes a trace for each rank",
    "nothing": "answers 200 to all, and writes nothing",
    "short": "writes a trace that ends in its middle",
    "fewer": "writes no trace of the last rank",
    "angry": "answers 500 to the stop, having written good traces",
    "mute": "never answers the start",
    "broken": "answers 500 to the start",
    "busy": "has a profiler at work already",
    "locked": "wants a key",
    "absent": "has no such endpoint",
    "endless": "never comes to the asked steps, until it is stopped",
    "slow": "writes each trace bit by bit",
    "stubborn": "writes a link instead of a trace",
}
KEY = "sesame"
LOG, KIND, FOLDER, BEHAVIOUR, RANKS = sys.argv[1:]
STEP_S = 0.02


class State:
    tokens = 0
    running = None


def trace(rank):
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": 10 * at, "dur": 5, "args": {}}
        for at in range(200)
    ]
    events += [
        {"ph": "X", "cat": "kernel", "name": f"gemm_{rank}", "pid": 0, "tid": 7, "ts": 10 * at, "dur": 5,
         "args": {"device": 0, "stream": 7, "correlation": at}}
        for at in range(200)
    ]  # fmt: skip
    return gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())


def name_of(rank, told):
    stamp = str(time.time_ns())
    if KIND == "vllm-old":
        return f"node_{4000 + rank}.{stamp}.pt.trace.json.gz"
    if KIND == "vllm":
        return f"{told['profile_prefix']}_dp0_pp0_tp{rank}_dcp0_ep0_rank{rank}.{stamp}.pt.trace.json.gz"
    if KIND == "trtllm":
        return f"trace-rank-{rank}.json.gz"
    return f"{stamp}-TP-{rank}{'-DECODE' if told.get('profile_by_stage') else ''}.trace.json.gz"


def write(told):
    folder = told.get("output_dir") or FOLDER
    os.makedirs(folder, exist_ok=True)
    ranks = range(int(RANKS) - (BEHAVIOUR == "fewer"))
    if BEHAVIOUR == "nothing":
        return
    if KIND.startswith("vllm"):
        front = f"{told.get('profile_prefix', '')}_node_1.async_llm.1.pt.trace.json.gz".lstrip("_")
        with open(os.path.join(folder, front), "wb") as file:
            file.write(trace(99))
    for rank in ranks:
        data, path = trace(rank), os.path.join(folder, name_of(rank, told))
        if BEHAVIOUR == "stubborn":
            os.symlink("/etc/hostname", path)
            continue
        with open(path, "wb") as file:
            if BEHAVIOUR == "short":
                file.write(data[: len(data) // 2])
            elif BEHAVIOUR == "slow":
                for at in range(0, len(data), 200):
                    file.write(data[at : at + 200])
                    file.flush()
                    time.sleep(0.05)
            else:
                file.write(data)


class Page(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/metrics":
            labels = '{engine="0",model_name="llama-8b"}'
            self.answer(
                200,
                f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{labels} 32\n"
                f"# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total{labels} {State.tokens}\n",
            )
            return
        self.log("GET", None)
        if BEHAVIOUR == "absent" or not self.path.endswith("_profile"):
            self.answer(404, '{"detail":"Not Found"}')
        elif KIND == "sglang":
            self.answer(200, "Start profiling.")
        else:
            self.answer(405, '{"detail":"Method Not Allowed"}')

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        told = json.loads(body) if body else {}
        self.log("POST", told if body else None)
        if BEHAVIOUR == "absent":
            self.answer(404, '{"detail":"Not Found"}')
        elif BEHAVIOUR == "locked" and self.headers.get("Authorization") != f"Bearer {KEY}":
            self.answer(401, '{"error":"Unauthorized"}')
        elif self.path == "/start_profile":
            self.start(told)
        else:
            self.stop()

    def start(self, told):
        if BEHAVIOUR == "mute":
            time.sleep(60)
        if BEHAVIOUR == "broken":
            return self.answer(500, "Internal Server Error")
        if BEHAVIOUR == "busy":
            return self.answer(400, "Profiling is already in progress. Call /end_profile first.")
        State.running = told
        steps = told.get("max_iterations") or told.get("num_steps")
        if steps and BEHAVIOUR != "endless":
            threading.Timer(steps * STEP_S, self.over, (told,)).start()
        return self.answer(200, "Start profiling." if KIND == "sglang" else "")

    def over(self, told):
        if State.running is told:
            State.running = None
            write(told)

    def stop(self):
        told, State.running = State.running, None
        if told is not None:
            write(told)
        self.answer(500 if BEHAVIOUR == "angry" else 200, "")

    def log(self, method, body):
        line = {"method": method, "path": self.path, "body": body, "key": self.headers.get("Authorization")}
        with open(LOG, "a") as file:
            file.write(json.dumps(line) + "\n")

    def answer(self, status, text):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def make_tokens():
    while True:
        time.sleep(0.01)
        State.tokens += 32


def main():
    assert BEHAVIOUR in BEHAVIOURS
    page = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=make_tokens, daemon=True).start()
    print(page.server_address[1], flush=True)
    page.serve_forever()


if __name__ == "__main__":
    main()
