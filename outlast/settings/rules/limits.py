"""Rules of times, limits and notifications."""

from urllib.parse import urlsplit

from outlast.machines import machines
from outlast.settings.reader import NAMESPACE, Reader, bad
from outlast.spec import identity, keys

LIMIT_RUN_MINUTES = 525_600
"""A year."""
LIMIT_WAIT_SEC = 86_400
"""A day."""


def webhook_of(url: str) -> str:
    try:
        parts = urlsplit(url)
        # Reading the port checks it.
        good = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if url and not good:
        raise bad(
            "webhook", keys.without_person(url), "must be an https address", "or leave it empty"
        )
    if "@" in urlsplit(url).netloc:
        raise bad(
            "webhook",
            keys.without_person(url),
            "must hold no user or password, they would be read in the stack's state and in the VM's"
            " metadata",
            "to an address that needs none",
        )
    return url


def timeouts_of(read: Reader, notice_sec: int, *, spot: bool) -> str:
    return identity.canonical_json(
        {
            "heartbeat": read.integer("heartbeatSec", 1, LIMIT_WAIT_SEC),
            "failure_grace": read.integer("failureGraceSec", 0, LIMIT_WAIT_SEC),
            "backoff": read.integer("backoffSec", 1, LIMIT_WAIT_SEC),
            "iam_propagation": read.integer("iamPropagationSec", 0, LIMIT_WAIT_SEC),
            "successor_silence": read.integer("successorSilenceSec", 1, LIMIT_WAIT_SEC),
            "notice": notice_sec,
            "stop": read.integer("stopSec", 0, LIMIT_WAIT_SEC) or machines.stop_sec(spot=spot),
            "stall": read.integer("maxStallMinutes", 1, LIMIT_RUN_MINUTES) * 60,
            "driver_install": read.integer("driverInstallSec", 0, LIMIT_WAIT_SEC),
            "storage": read.integer("storageTimeoutSec", 1, LIMIT_WAIT_SEC),
            "keep": _keep_vm_minutes(read) * 60,
        }
    )


def _keep_vm_minutes(read: Reader) -> int:
    """How long the VM stays after the run's end."""
    minutes = read.integer("keepVmMinutes", 1, LIMIT_RUN_MINUTES)
    if read.choice("onEnd", "delete", "keep") != "keep":
        return 0
    limit = read.integer("maxRunMinutes", 1, LIMIT_RUN_MINUTES)
    if minutes >= limit:
        raise bad(
            "keepVmMinutes",
            minutes,
            f"is not below {NAMESPACE}:maxRunMinutes {limit}, and no VM outlives the run's limit",
            "lower, or outlast:maxRunMinutes higher",
        )
    return minutes
