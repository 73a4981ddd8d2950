"""A model hub on a port of this machine, as far as downloads need one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "1" * 40


class FakeHub(ThreadingHTTPServer):
    """Serves `files` of one repository, each as a large file with its SHA-256."""

    daemon_threads = True

    def __init__(self, repo: str, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repo = repo
        self.files = dict(files)
        self.downloads: list[str] = []
        """Names of the files that were fetched."""
        self.unreachable: set[str] = set()
        """Names of files that are listed and not served."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextlib.contextmanager
def fake_hub(repo: str, files: Mapping[str, bytes]) -> Iterator[FakeHub]:
    """A hub that serves while the body runs."""
    with FakeHub(repo, files) as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        if path.startswith(f"/api/models/{self.server.repo}/tree/"):
            self._send(200, json.dumps(self._tree()).encode(), {}, with_body=with_body)
            return
        if path.startswith(f"/api/models/{self.server.repo}"):
            self._send(200, json.dumps(self._info()).encode(), {}, with_body=with_body)
            return
        name = path.rpartition("/")[2]
        if (
            f"/{self.server.repo}/resolve/" not in path
            or name not in self.server.files.keys() - self.server.unreachable
        ):
            self._send(404, b"{}", {"x-error-code": "EntryNotFound"}, with_body=with_body)
            return
        content = self.server.files[name]
        if with_body:
            self.server.downloads.append(name)
        headers = {"etag": f'"{hashlib.sha256(content).hexdigest()}"', "x-repo-commit": COMMIT}
        self._send(200, content, headers, with_body=with_body)

    def _info(self) -> dict[str, object]:
        siblings = [
            {
                "rfilename": name,
                "size": len(content),
                "blobId": "0" * 40,
                "lfs": {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "pointerSize": 130},
            }
            for name, content in self.server.files.items()
        ]
        return {"_id": "0", "id": self.server.repo, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}

    def _tree(self) -> list[dict[str, object]]:
        return [
            {
                "type": "file",
                "path": name,
                "size": len(content),
                "oid": "0" * 40,
                "lfs": {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130},
            }
            for name, content in self.server.files.items()
        ]

    def _send(self, status: int, body: bytes, headers: Mapping[str, str], *, with_body: bool) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body)), "content-type": "application/json"}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)
