#!/usr/bin/env bats
# The health process: when the boot starts it, with what, and the signs that the boot gives.

load helper

SIGN=""

setup() {
  vm::make
  SIGN="$OUTLAST_ROOT/run/outlast/sign"
}

ask_for_health() {
  metadata attributes/outlast-health "8099 900"
  mkdir -p "$CLOUD/metadata/instance/network-interfaces/0"
  metadata network-interfaces/0/ip 127.0.0.9
}

@test "it is started at the VM's own address before the supervisor, and log lines are its signs" {
  ask_for_health
  cat >"$OUTLAST_ROOT/act.py" <<'PYTHON'
import os
import time
from pathlib import Path

root = Path(os.environ["OUTLAST_ROOT"])
while not (root / "health.json").exists():
    time.sleep(0.01)
os.utime(root / "run/outlast/sign", (0, 0))
PYTHON
  run -0 vm::boot
  [[ "$(json "$OUTLAST_ROOT/health.json" argv)" == "['127.0.0.9', '8099', '900', '$SIGN']" ]]
  [[ "$(json "$OUTLAST_ROOT/health.json" isolated)" == 1 ]]
  [[ "$(stat --format %Y "$SIGN")" -gt 0 ]]
}

@test "without health checks there is no process and no sign" {
  run -0 vm::boot
  [[ ! -e $OUTLAST_ROOT/health.json && ! -e $SIGN ]]
}

@test "with systemd it is a separate unit that is started again, and spared when memory is short" {
  ask_for_health
  mkdir -p "$OUTLAST_ROOT/run/systemd/system"
  command_in "$OUTLAST_ROOT/bin/systemctl" 'printf "systemctl %s\n" "$*" >>"$CLOUD/calls"'
  run -0 vm::boot
  local unit="$OUTLAST_ROOT/run/systemd/system/outlast-health.service"
  run -0 grep -E '^(Restart=always|OOMScoreAdjust=-500)$' "$unit"
  run -0 grep -E "^ExecStart=/.* -I .*/outlast/supervisor/health.py 127.0.0.9 8099 900 $SIGN$" "$unit"
  [[ "$(grep '^systemctl.*start' "$CLOUD/calls" | head -n 1)" == *outlast-health.service ]]
}
