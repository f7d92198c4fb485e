"""Prometheus text and the health page."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from ebscfl.kdc_service.metrics import HELP, Metrics, MetricsServer


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_text_has_every_metric_and_a_cumulative_histogram():
    metrics = Metrics()
    metrics.add("ebscfl_kdc_requests_total", party="server", kind='sa"y\\', status="ok")
    metrics.add("ebscfl_kdc_requests_total", 2, party="server", kind='sa"y\\', status="ok")
    metrics.put("ebscfl_kdc_newest_round", 7)
    for seconds in (0.0005, 0.003, 100.0):
        metrics.observe(seconds)
    text = metrics.text()
    for name, (kind, _) in HELP.items():
        assert f"# TYPE {name} {kind}\n" in text
    assert 'ebscfl_kdc_requests_total{kind="sa\\"y\\\\",party="server",status="ok"} 3\n' in text
    assert "ebscfl_kdc_newest_round 7\n" in text
    assert 'ebscfl_kdc_answer_seconds_bucket{le="0.001"} 1\n' in text
    assert 'ebscfl_kdc_answer_seconds_bucket{le="0.005"} 2\n' in text
    assert 'ebscfl_kdc_answer_seconds_bucket{le="10.0"} 2\n' in text
    assert 'ebscfl_kdc_answer_seconds_bucket{le="+Inf"} 3\n' in text
    assert "ebscfl_kdc_answer_seconds_count 3\n" in text
    assert metrics.value("ebscfl_kdc_newest_round") == 7


def test_pages_health_and_rate():
    complaints: list[str | None] = [None]
    server = MetricsServer(Metrics(), lambda: complaints[0], 0)
    server.start()
    try:
        assert get(server.port, "/health") == (200, "ok\n")
        complaints[0] = "halted"
        assert get(server.port, "/health") == (503, "halted\n")
        status, text = get(server.port, "/metrics")
        assert status == 200
        assert "ebscfl_kdc_answer_seconds_count 0" in text
        assert get(server.port, "/secrets")[0] == 404
        assert 429 in [get(server.port, "/health")[0] for _ in range(60)]
    finally:
        server.stop()


@pytest.mark.parametrize("value", ["x\ny"])
def test_labels_cannot_break_a_line(value):
    metrics = Metrics()
    metrics.add("ebscfl_kdc_faults_total", culprit=value)
    assert 'culprit="x\\ny"' in metrics.text()
