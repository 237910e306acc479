"""What a server counts, in the text format that Prometheus reads. No label ever contains what a user wrote."""

import os

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class ServerMetrics:
    """The server's counters, gauges and histograms; those of several processes on one port are added up."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = CollectorRegistry()
        self.registry = registry
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "firth_requests", "Requests by route and status.", ("route", "status"), registry=registry
        )
        self.request_seconds = Histogram(
            "firth_request_seconds", "From head to answer.", ("route",), buckets=SECONDS, registry=registry
        )
        self.wait_seconds = Histogram(
            "firth_wait_seconds", "What requests waited for their batch.", buckets=SECONDS, registry=registry
        )
        self.batch_seconds = Histogram("firth_batch_seconds", "Computing a batch.", buckets=SECONDS, registry=registry)
        self.batch_jobs = Histogram("firth_batch_jobs", "Requests in a batch.", buckets=REQUESTS, registry=registry)
        self.batch_tokens = Histogram("firth_batch_tokens", "Tokens in a batch.", buckets=TOKENS, registry=registry)
        self.turned_away = Counter("firth_turned_away", "Requests refused because of load.", registry=registry)
        self.dropped = Counter("firth_dropped", "Requests whose client left before their turn.", registry=registry)
        self.queued = Gauge(
            "firth_queued", "Requests that wait for their turn.", registry=registry, multiprocess_mode="livesum"
        )
        self.held_bytes = Gauge(
            "firth_held_bytes", "Bytes of all bodies that are held now.", registry=registry, multiprocess_mode="livesum"
        )

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self.registry)
        added_up = CollectorRegistry()
        MultiProcessCollector(added_up)  # type: ignore[no-untyped-call]
        return generate_latest(added_up)
