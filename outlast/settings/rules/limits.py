"""Rules for times and limits."""

from outlast.machines import machines
from outlast.settings.errors import NAMESPACE, SettingsError, bad
from outlast.settings.keys import Keys
from outlast.spec import identity
from outlast.spec.sweep_rules import BadRules, Rule, SweepRules


def timeouts_of(given: Keys, *, spot: bool) -> str:
    """The supervisor's Timeouts, in JSON."""
    return identity.canonical_json(
        {
            "heartbeat": given.heartbeat_sec,
            "failure_grace": given.failure_grace_sec,
            "backoff": given.backoff_sec,
            "iam_propagation": given.iam_propagation_sec,
            "silence": given.silence_sec,
            "successor_silence": given.successor_silence_sec,
            "notice": given.notice_sec,
            "stop": given.stop_sec or machines.stop_sec(spot=spot),
            "stall": given.max_stall_minutes * 60,
            "driver_install": given.driver_install_sec,
            "storage": given.storage_timeout_sec,
            "keep": _keep_vm_minutes(given) * 60,
        }
    )


def _keep_vm_minutes(given: Keys) -> int:
    """Seconds that the VM stays after the run's end."""
    minutes, limit = given.keep_vm_minutes, given.max_run_minutes
    if given.on_end != "keep":
        return 0
    if minutes >= limit:
        raise bad(
            "keepVmMinutes",
            minutes,
            f"is not below {NAMESPACE}:maxRunMinutes {limit}, and no VM outlives the run's limit",
            "lower, or outlast:maxRunMinutes higher",
        )
    return minutes


def sweep_rules_of(given: Keys) -> SweepRules | None:
    """The sweep of which the run is a trial; None for none. Raises SettingsError."""
    if not given.sweep:
        return None
    try:
        return SweepRules.parse(given.sweep)
    except BadRules as error:
        raise SettingsError(f"{NAMESPACE}:sweep.{error}; set {NAMESPACE}:sweep") from None


def sweep_advice(rules: SweepRules | None, command: str) -> tuple[str, ...]:
    """A sentence if the sweep's rule can stop nothing."""
    if rules is None or rules.rule is Rule.NONE or not command:
        return ()
    return (
        f"{NAMESPACE}:sweep.rule {rules.rule} beside {NAMESPACE}:command: a command logs no values"
        " while it trains, so it is compared with no other trial and trains to its end",
    )
