"""Enough of a W&B server on 127.0.0.1 to take one client through a run: it answers, and keeps what it was sent.

It shows what our code makes the real client send; it does not show that W&B's servers would take it.
"""

import gzip
import json
import os
import re
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def alone(home: Path, **more: str) -> dict[str, str]:
    """The environment of a process that neither reads nor writes what W&B keeps of this machine's owner."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    places = {f"WANDB_{name}_DIR": str(home / name) for name in ("CONFIG", "CACHE", "ARTIFACT")}
    return kept | places | {"NETRC": str(home / "netrc"), "WANDB_ERROR_REPORTING": "false"} | more


class Endpoint(ThreadingHTTPServer):
    """``runs``: what each run was upserted with; ``streams``: its lines by file name; ``exits``; ``uploads`` by
    path."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.runs: dict[str, dict] = defaultdict(dict)
        self.streams: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        self.exits: dict[str, int] = {}
        self.uploads: dict[str, bytes] = {}
        self.upserts: list[str] = []  # names of runs, one for each time that a client started or changed one
        self.failing = False  # whether every request is answered with an error of the server
        self.refused: dict[str, list[int]] = {}  # by run and request: the statuses that the next ones are answered with

    def __enter__(self) -> "Endpoint":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, *request: object) -> None:
        """The client drops its connections when it is done."""

    def close(self) -> None:
        """Be gone, while a client is at work."""
        self.socket.close()
        threading.Thread(target=self.shutdown, daemon=True).start()

    def refusal(self, request: str, run: str | None = None) -> int | None:
        """The status that a request is refused with, if it is; the last of a list stays, an empty one is none."""
        of = f"{run or ''.join(self.upserts[-1:])} {request}"
        left = next((left for pattern, left in self.refused.items() if re.fullmatch(pattern, of)), [])
        return left.pop(0) if len(left) > 1 else left[0] if left else None

    def stream(self, run: str, sent: dict) -> dict:
        for name, part in (sent.get("files") or {}).items():
            self.streams[run][name] += part["content"]
        if "exitcode" in sent:
            self.exits[run] = sent["exitcode"]
        return {}

    def query(self, operation: str, values: dict) -> dict:
        """The part of the answer that the client reads, by the name of its GraphQL operation."""
        given = values.get("input", values)
        answers = {
            "UpsertBucket": lambda: self._upsert(values),
            "CreateRunFiles": lambda: self._run_files(values["files"]),
            "CreateArtifact": lambda: {"artifact": {"id": "a", "state": "PENDING", "artifactSequence": {"id": "s"}}},
            "CreateArtifactManifest": lambda: {"artifactManifest": {"id": "m", "file": self._place("manifest", "art")}},
            "CreateArtifactFiles": lambda: self._artifact_files(given["artifactFiles"]),
            "CommitArtifact": lambda: {"artifact": {"id": "a", "digest": "d"}},
        }
        if operation in answers:
            return {operation[0].lower() + operation[1:]: answers[operation]()}
        if operation == "Runs":
            return {"project": self._listed(json.loads(values["filters"]))}
        if operation == "ArtifactType":
            return {"project": {"artifact": None}}
        person = {"id": "u", "entity": "tester", "username": "tester", "flags": "{}", "teams": {"edges": []}}
        return {"viewer": person, "serverInfo": {"cliVersionInfo": {"max_cli_version": "99.0.0"}, "features": []}}

    def _upsert(self, values: dict) -> dict:
        name = values["name"]
        self.upserts.append(name)
        self.runs[name] |= {key: value for key, value in values.items() if value is not None}
        project = {"id": "p", "name": values.get("project"), "entity": {"id": "e", "name": "tester"}}
        bucket = {"id": f"b{name}", "name": name, "displayName": name, "config": "{}", "project": project}
        return {"bucket": bucket | {"historyLineCount": 0}, "inserted": True}

    def _listed(self, filters: dict) -> dict:
        wanted = filters["displayName"]["$in"]
        found = [(name, sent["displayName"]) for name, sent in self.runs.items() if sent.get("displayName") in wanted]
        nodes = [{"id": name, "projectId": "1", "name": name, "displayName": shown} for name, shown in found]
        edges = [{"node": node | {"state": "finished", "tags": []}, "cursor": node["id"]} for node in nodes]
        page = {"endCursor": None, "hasNextPage": False}
        return {"internalId": "1", "runCount": len(nodes), "runs": {"edges": edges, "pageInfo": page}}

    def _place(self, name: str, kind: str) -> dict[str, Any]:
        return {
            "id": name,
            "name": name,
            "displayName": name,
            "uploadUrl": f"{self.url}/{kind}/{name}",
            "uploadHeaders": [],
        }

    def _run_files(self, names: list[str]) -> dict:
        return {"runID": "1", "uploadHeaders": [], "files": [self._place(name, "run") for name in names]}

    def _artifact_files(self, files: list[dict]) -> dict:
        places = [
            self._place(file["name"], "art") | {"storagePath": file["name"], "artifact": {"id": "a"}} for file in files
        ]
        return {"files": {"edges": [{"node": place} for place in places]}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Endpoint

    def log_message(self, *parts: object) -> None:
        """Silent."""

    def do_GET(self) -> None:
        self._answer({})

    def do_PUT(self) -> None:
        body = self._body()
        if status := self.server.refusal(f"PUT {self.path}"):
            return self._answer({"error": "refused"}, status)
        self.server.uploads[self.path] = body
        self._answer({})

    def do_POST(self) -> None:
        sent = json.loads(self._body())
        values = sent.get("variables") or {}
        stream = re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", self.path)
        operation = (
            "file_stream"
            if stream
            else sent.get("operationName") or re.search(r"(?:query|mutation)\s+(\w+)", sent["query"])[1]
        )
        if status := self.server.refusal(f"POST {operation}", stream[1] if stream else values.get("name")):
            return self._answer({"error": "refused"}, status)
        if stream:
            return self._answer(self.server.stream(stream[1], sent))
        self._answer({"data": self.server.query(operation, values)})

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while length := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(length))
                self.rfile.readline()
            self.rfile.readline()
            body = b"".join(parts)
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _answer(self, value: dict, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(500 if self.server.failing else status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
