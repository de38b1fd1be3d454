#!/usr/bin/env bats
# From the supervisor's start to the power-off: signals, its ends, its crashes.

load helper

setup() {
  vm::make
}

# act SCRIPT: what the supervisor does; ROOT is the VM's root.
act() {
  printf 'import os, signal, sys, time\nfrom pathlib import Path\nROOT = Path(os.environ["OUTLAST_ROOT"])\n%s\n' \
    "$1" >"$OUTLAST_ROOT/act.py"
}

@test "an end on purpose is passed on and never judged" {
  local code
  for code in 75 76; do
    act "sys.exit($code)"
    run "-$code" vm::boot
    [[ "$(tail -n 1 "$CLOUD/calls")" == poweroff ]]
  done
  [[ "$(calls 'prefix=')" == 0 ]]
  [[ ! -e "$(object "$RECORD.end.json")" ]]
}

@test "SIGTERM reaches the supervisor, which is waited for" {
  act 'def stop(*_):
    (ROOT / "stopping").touch()
    while not (ROOT / "go").exists():
        time.sleep(0.01)
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
(ROOT / "up").touch()
while True: time.sleep(0.01)'
  vm::boot 3>&- &
  local job=$! script
  wait_until test -e "$OUTLAST_ROOT/up"
  script="$(ps -o ppid= -p "$(<"$OUTLAST_ROOT/run/outlast/ready")")"
  kill -TERM "$script"
  wait_until test -e "$OUTLAST_ROOT/stopping"
  kill -TERM "$script"
  [[ "$(calls '^poweroff')" == 0 ]]
  touch "$OUTLAST_ROOT/go"
  local rc=0
  wait "$job" || rc=$?
  [[ "$rc" == 75 ]]
  [[ "$(tail -n 1 "$CLOUD/calls")" == poweroff ]]
}

@test "SIGINT reaches the supervisor as SIGTERM" {
  act 'signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
(ROOT / "up").touch()
while True: time.sleep(0.01)'
  vm::boot 3>&- &
  local job=$! rc=0
  wait_until test -e "$OUTLAST_ROOT/up"
  kill -INT "$(ps -o ppid= -p "$(<"$OUTLAST_ROOT/run/outlast/ready")")"
  wait "$job" || rc=$?
  [[ "$rc" == 75 ]]
}

@test "a supervisor that a signal ends on a stopping machine is not a failed boot" {
  act '(ROOT / "up").touch()
while True: time.sleep(0.01)'
  vm::boot 3>&- &
  local job=$! rc=0
  wait_until test -e "$OUTLAST_ROOT/up"
  kill -TERM "$(ps -o ppid= -p "$(<"$OUTLAST_ROOT/run/outlast/ready")")"
  wait "$job" || rc=$?
  [[ "$rc" == 143 ]]
  [[ ! -e "$(object "$RECORD.end.json")" ]]
  [[ "$(tail -n 1 "$CLOUD/calls")" == poweroff ]]
}

@test "a supervisor killed after its attempt began: its records tell the rest, the machine ends" {
  act "Path('$(object "$PREFIX/attempts/000001/start.json")').write_text('{}')
os.kill(os.getpid(), signal.SIGKILL)"
  run -137 vm::boot
  said 'ended unexpectedly with status 137'
  [[ ! -e "$(object "$RECORD.end.json")" ]]
  [[ "$(tail -n 1 "$CLOUD/calls")" == poweroff ]]
}

@test "a supervisor that dies without an attempt is a boot that failed, with its last lines" {
  act 'raise ModuleNotFoundError("No module named outlast.bucket.head")'
  run -1 vm::boot
  local end
  end="$(object "$RECORD.end.json")"
  is_record BootEnd "$end"
  [[ "$(json "$end" step)" == supervisor ]]
  [[ "$(json "$end" reason)" == setup-failed ]]
  [[ "$(json "$end" message)" == *"No module named outlast.bucket.head" ]]
  [[ "$(tail -n 1 "$CLOUD/calls")" == poweroff ]]
}

@test "a supervisor that wrote the boot's end itself is not overruled" {
  act "Path('$(object "$RECORD.end.json")').write_text('its own')
sys.exit(64)"
  run -64 vm::boot
  [[ "$(<"$(object "$RECORD.end.json")")" == "its own" ]]
}

@test "a signal before the supervisor runs ends the boot without a verdict" {
  fault GET bundle.zip 503 -1
  metadata attributes/outlast-timeouts '{"backoff":0,"iam_propagation":600}'
  vm::boot 3>&- &
  local job=$! rc=0
  wait_until grep -q 'bundle .*503' "$OUTLAST_ROOT/dev/ttyS0"
  kill -TERM "$(pgrep -P "$job" -f startup-script)"
  wait "$job" || rc=$?
  [[ "$rc" == 75 ]]
  [[ ! -e "$(object "$RECORD.end.json")" ]]
  [[ "$(calls '^poweroff')" == 0 ]]
}

@test "as a unit, knowing only its arguments, it judges a crash all the same" {
  mkdir -p "$OUTLAST_ROOT/run/systemd/system"
  command_in "$OUTLAST_ROOT/bin/systemctl" "exit 0"
  run -0 vm::boot
  act 'sys.exit(3)'
  read -ra argv < <(sed -n 's/^ExecStart=//p' \
    "$OUTLAST_ROOT/run/systemd/system/outlast-supervisor.service")
  run -3 "${argv[@]}"
  is_record BootEnd "$(object "$RECORD.end.json")"
  [[ "$(json "$(object "$RECORD.end.json")" exit)" == 3 ]]
  [[ "$(tail -n 1 "$CLOUD/calls")" == poweroff ]]
}
