"""What a server counts, in the text form Prometheus reads. No label ever holds what a user wrote."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Meters:
    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
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
        self.batch_jobs = Histogram(
            "firth_batch_jobs", "Requests in a batch.", buckets=[2**i for i in range(10)], registry=registry
        )
        self.batch_tokens = Histogram(
            "firth_batch_tokens", "Tokens in a batch.", buckets=[2**i for i in range(4, 15)], registry=registry
        )
        self.turned_away = Counter("firth_turned_away", "Requests refused because of load.", registry=registry)
        self.dropped = Counter("firth_dropped", "Requests whose client left before their turn.", registry=registry)
        self.queued = Gauge("firth_queued", "Requests that wait for their turn.", registry=registry)
        self.held_bytes = Gauge("firth_held_bytes", "Bytes of all bodies that are held now.", registry=registry)

    def text(self) -> bytes:
        return generate_latest(self.registry)
