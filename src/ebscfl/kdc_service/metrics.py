"""Counters of the key centre as Prometheus text, and a health page, over plain HTTP on the loopback interface.

Nothing here is secret: names of parties, kinds of messages, counts, sizes and times.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ebscfl.ids import KDC
from ebscfl.kdc_service.limits import Limits, RateLimiter

BUCKETS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

HELP = {
    "ebscfl_kdc_requests_total": ("counter", "Requests by party, kind and status."),
    "ebscfl_kdc_bytes_total": ("counter", "Bytes of messages by direction."),
    "ebscfl_kdc_refused_connections_total": ("counter", "Connections refused, by reason."),
    "ebscfl_kdc_faults_total": ("counter", "Messages that were somebody's fault, by culprit."),
    "ebscfl_kdc_restarts_of_role_total": ("counter", "Times the role was rebuilt from its store."),
    "ebscfl_kdc_connections": ("gauge", "Open connections."),
    "ebscfl_kdc_enrolled": ("gauge", "Enrolled clients."),
    "ebscfl_kdc_newest_round": ("gauge", "Newest round opened; -1 before the first."),
    "ebscfl_kdc_halted": ("gauge", "1 when the server was caught and is served no more."),
    "ebscfl_kdc_answer_seconds": ("histogram", "Time from a whole request to its answer."),
}

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counts; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: Counter[tuple[str, Labels]] = Counter()
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Count up."""
        with self._lock:
            self._values[name, tuple(sorted(labels.items()))] += amount  # type: ignore[assignment]

    def put(self, name: str, value: float) -> None:
        """Set a gauge."""
        with self._lock:
            self._values[name, ()] = value  # type: ignore[assignment]

    def observe(self, seconds: float) -> None:
        """One answer took so long."""
        with self._lock:
            self._sum += seconds
            self._buckets[next((i for i, top in enumerate(BUCKETS) if seconds <= top), len(BUCKETS))] += 1

    def value(self, name: str, **labels: str) -> float:
        """One number; zero when nothing was counted."""
        with self._lock:
            return self._values.get((name, tuple(sorted(labels.items()))), 0)

    def text(self) -> str:
        """Everything in Prometheus' text format."""
        lines: list[str] = []
        with self._lock:
            for name, (kind, meaning) in HELP.items():
                lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
                if kind == "histogram":
                    lines += self._histogram(name)
                lines += [
                    f"{name}{_braces(labels)} {value:g}"
                    for (found, labels), value in sorted(self._values.items())
                    if found == name
                ]
        return "\n".join(lines) + "\n"

    def _histogram(self, name: str) -> list[str]:
        total, lines = 0, []
        for top, count in zip((*map(str, BUCKETS), "+Inf"), self._buckets, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{top}"}} {total}')
        return [*lines, f"{name}_sum {self._sum:g}", f"{name}_count {total}"]


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{key}="{_escaped(value)}"' for key, value in labels)
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class MetricsServer:
    """``/metrics`` and ``/health`` on ``host:port``; health is 200 while ``healthy()`` gives no complaint, else 503."""

    def __init__(self, metrics: Metrics, healthy: Callable[[], str | None], port: int, host: str = "127.0.0.1") -> None:
        rate = RateLimiter(Limits(requests_per_s=20, burst=40))

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                if not rate.allow(KDC):
                    self._answer(429, "too many requests\n", "text/plain")
                elif self.path == "/metrics":
                    self._answer(200, metrics.text(), CONTENT_TYPE)
                elif self.path == "/health":
                    complaint = healthy()
                    self._answer(200 if complaint is None else 503, f"{complaint or 'ok'}\n", "text/plain")
                else:
                    self._answer(404, "there are /metrics and /health\n", "text/plain")

            def _answer(self, status: int, text: str, kind: str) -> None:
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Scrapes are not worth a line each."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="kdc-metrics", daemon=True)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
