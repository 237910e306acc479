"""What ranks send each other in a step: bytes and links in, seconds out. A projection, not a measurement.

A ring of n ranks adds up G bytes in 2 (n - 1) / n x G / bandwidth + 2 (n - 1) x latency, gathers or scatters them in
half of that (Patarasuk & Yuan 2009). The slowest link of the ring counts: with several machines that is the network,
which carries all that a machine sends. `python -m bench.gloo_cpu` compares these terms with gloo on one machine.
"""

from typing import Literal

from firth.planning.machines import Cluster
from firth.train.settings import BUCKET_BYTES

Mode = Literal["ddp", "fsdp"]

LATENCY = 15e-6
"""Seconds of a message between two GPUs."""
HIDDEN_SHARE = 0.7
"""FSDP2 gathers weights while others compute: up to this share of the time of computing is hidden. Assumed."""


def ring_bandwidth(cluster: Cluster) -> float:
    """Bytes a second of the slowest link."""
    if cluster.machines == 1:
        return cluster.device.link
    return min(cluster.device.link, cluster.network * 1e9 / 8)


def all_reduce_seconds(num_bytes: float, ranks: int, *, bandwidth: float, latency: float = LATENCY) -> float:
    """Seconds of a ring all-reduce, after which all ranks have the sums of all ranks."""
    if ranks == 1:
        return 0.0
    messages = max(1.0, num_bytes / BUCKET_BYTES)
    moved = 2 * (ranks - 1) / ranks * num_bytes / bandwidth
    return moved + 2 * (ranks - 1) * latency * messages


def sent_bytes(parameters: float, cluster: Cluster, mode: Mode, *, micro_batches: int = 1) -> float:
    """Bytes that each device sends in a step, in which it computes `micro_batches` micro-batches."""
    ranks = cluster.size
    if mode == "ddp":
        # Gradients are added once, after the last micro-batch.
        gradients = 4 * parameters
        return 2 * (ranks - 1) / ranks * gradients
    # In every micro-batch bf16 weights are gathered for the forward and the backward pass, fp32 gradients scattered.
    gathered = (2 + 2) * parameters
    scattered = 4 * parameters
    return micro_batches * (ranks - 1) / ranks * (gathered + scattered)


def exposed_seconds(
    parameters: float,
    cluster: Cluster,
    mode: Mode,
    *,
    computing: float,
    micro_batches: int = 1,
) -> float:
    """Seconds of a step in which a device waits for others."""
    bandwidth = ring_bandwidth(cluster)
    if mode == "ddp":
        # Gradients are added after the last micro-batch, while nothing else is computed.
        return all_reduce_seconds(4 * parameters, cluster.size, bandwidth=bandwidth)
    moving = sent_bytes(parameters, cluster, mode, micro_batches=micro_batches) / bandwidth
    return max(0.0, moving - HIDDEN_SHARE * computing)
