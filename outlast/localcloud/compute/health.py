"""Probes VMs, as the platform's health checks do."""

import asyncio
from typing import Any

from outlast.localcloud.compute.fleet.model import HealthCheck

TIMEOUT_SEC = 5
KINDS = ("httpHealthCheck", "http2HealthCheck", "httpsHealthCheck", "tcpHealthCheck")
MATCHED_BYTES = 1024
SOURCES = ("130.211.0.1", "35.191.0.1")
"""One address of each range that the platform probes from."""
ADDRESSES = 254
"""Addresses of one cloud. Only without processes can there be more VMs, which then share them."""


def vm_address(cloud_port: int, number: int) -> str:
    """A VM's internal address by its number, from 1. Each VM has a separate address on this
    machine's loopback, so that two VMs may listen on one port, also across local clouds."""
    return f"127.{cloud_port >> 8}.{cloud_port & 255}.{(number - 1) % ADDRESSES + 1}"


def port_of(check: HealthCheck) -> int:
    """The port that a health check probes."""
    kind = _kind(check)
    rules: dict[str, Any] = check.body.get(kind) or {}
    return int(rules.get("port") or (80 if kind == "httpHealthCheck" else 443))


def _kind(check: HealthCheck) -> str:
    return next((kind for kind in KINDS if kind in check.body), "tcpHealthCheck")


async def probe(check: HealthCheck, host: str) -> bool:
    """Whether the VM at the address is healthy: over HTTP it must answer 200, otherwise accept the
    connection."""
    kind, port = _kind(check), port_of(check)
    rules: dict[str, Any] = check.body.get(kind) or {}
    try:
        async with asyncio.timeout(check.number("timeoutSec", TIMEOUT_SEC)):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                if kind != "httpHealthCheck":
                    return True
                path = rules.get("requestPath") or "/"
                name = rules.get("host") or host
                head = f"GET {path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode())
                status = await reader.readline()
                if status.split(b" ")[1:2] != [b"200"]:
                    return False
                wanted = str(rules.get("response") or "")
                while wanted and (await reader.readline()).strip():
                    pass  # the headers
                body = await reader.read(MATCHED_BYTES) if wanted else b""
                return body.startswith(wanted.encode())
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.LimitOverrunError):
        return False
