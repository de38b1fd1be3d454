"""Asks VMs for their health, as the platform's health checks do."""

import asyncio
from typing import Any

from rehearsal.model import HealthCheck

TIMEOUT_SEC = 5
KINDS = ("httpHealthCheck", "http2HealthCheck", "httpsHealthCheck", "tcpHealthCheck")
MATCHED_BYTES = 1024


async def probe(check: HealthCheck, host: str) -> bool:
    """Whether the VM at the address answers as the check wants: over HTTP with 200, else by taking
    the connection."""
    kind = next((kind for kind in KINDS if kind in check.body), "tcpHealthCheck")
    rules: dict[str, Any] = check.body.get(kind) or {}
    port = int(rules.get("port") or (80 if kind == "httpHealthCheck" else 443))
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
