#!/usr/bin/env bats
# The operating system around the scripts: its upgrades, apt's locks, a shutdown's delay, /tmp.

load helper

setup() {
  vm::make
  mkdir -p "$OUTLAST_ROOT/run/systemd/system" "$OUTLAST_ROOT/etc/needrestart/conf.d"
  local tool
  for tool in dpkg systemctl; do
    command_in "$OUTLAST_ROOT/bin/$tool" "echo $tool \"\$@\" >>'$CLOUD/calls'"
  done
}

# functions: those of the scripts, in this shell.
functions() {
  source "$REPO/startup/lib.sh"
  source "$REPO/startup/system.sh"
  mkdir -p "$STATE_DIR" "$LOG_DIR"
  STEP_LOG="$LOG_DIR/apt.log"
  BACKOFF=0
}

# apt_fails TIMES MESSAGE: installations that fail, before one that does not.
apt_fails() {
  echo "$1" >"$OUTLAST_ROOT/left"
  command_in "$OUTLAST_ROOT/bin/apt-get" "
echo apt-get \"\$@\" >>'$CLOUD/calls'
left=\"\$(<'$OUTLAST_ROOT/left')\"
if [[ \$* == *install* ]] && ((left > 0)); then
  echo \$((left - 1)) >'$OUTLAST_ROOT/left'
  echo '$2' >&2
  exit 100
fi"
}

@test "the upgrades of the first boot are stopped before anything is fetched" {
  run -0 vm::boot
  local units='apt-daily.timer apt-daily.service apt-daily-upgrade.timer apt-daily-upgrade.service unattended-upgrades.service'
  [[ "$(calls "^systemctl mask --runtime $units$")" == 1 ]]
  # A stop that is waited for lasts as long as the upgrade at work.
  [[ "$(calls "^systemctl stop --no-block $units$")" == 1 ]]
  [[ "$(grep -oE '^systemctl stop|bundle.zip' "$CLOUD/calls" | head -n 1)" == 'systemctl stop' ]]
}

@test "a shutdown is heard at once, whatever a package of the image says" {
  run -0 vm::boot
  local file="$OUTLAST_ROOT/run/systemd/logind.conf.d/zz-outlast.conf"
  grep -qx 'InhibitDelayMaxSec=0' "$file"
  grep -qx 'PowerKeyIgnoreInhibited=yes' "$file"
  # Drop-ins are read in the order of their names, of all folders together; the last one counts.
  local names
  names="$(printf '%s\n' unattended-upgrades-logind-maxdelay.conf "${file##*/}" | LC_ALL=C sort)"
  [[ "${names##*$'\n'}" == "${file##*/}" ]]
  [[ "$(calls '^systemctl kill --signal=HUP systemd-logind.service$')" == 1 ]]
}

@test "an upgrade that restarts services leaves the supervisor alone" {
  run -0 vm::boot
  grep -qF 'qr(^outlast-)' "$OUTLAST_ROOT/etc/needrestart/conf.d/outlast.conf"
}

@test "the units stop before the network does, and wait for it at the start" {
  metadata attributes/outlast-health '8080 60'
  run -0 vm::boot
  local unit after
  for unit in outlast-supervisor outlast-health; do
    unit="$OUTLAST_ROOT/run/systemd/system/$unit.service"
    grep -qx 'Wants=network-online.target' "$unit"
    after=" $(sed -n 's/^After=//p' "$unit") "
    local name
    for name in network.target network-online.target nss-lookup.target systemd-networkd.service \
      systemd-resolved.service networking.service NetworkManager.service; do
      [[ $after == *" $name "* ]]
    done
  done
}

@test "a machine that is going down is not powered off again" {
  command_in "$OUTLAST_ROOT/bin/systemctl" '[[ $1 != is-system-running ]] || echo stopping'
  run -0 vm::boot
  run -0 /bin/bash "$OUTLAST_ROOT/var/lib/outlast/boot.sh" supervise "$PYTHON" \
    "$(echo "$OUTLAST_ROOT"/var/lib/outlast/bundle/*)"
  [[ "$(calls '^poweroff')" == 0 ]]
  said 'is going down already'
}

@test "temporary files are on the disk, for the supervisor and its trainer too" {
  printf 'import os, pathlib\npathlib.Path(os.environ["OUTLAST_ROOT"], "tmpdir").write_text(os.environ["TMPDIR"])\n' \
    >"$OUTLAST_ROOT/act.py"
  rmdir "$OUTLAST_ROOT/run/systemd/system"
  mkdir -p "$OUTLAST_ROOT/var/lib/outlast/tmp/left-by-an-earlier-boot"
  run -0 vm::boot
  [[ "$(<"$OUTLAST_ROOT/tmpdir")" == "$OUTLAST_ROOT/var/lib/outlast/tmp" ]]
  [[ "$(stat -c %a "$OUTLAST_ROOT/var/lib/outlast/tmp")" == 1777 ]]
  [[ ! -e "$OUTLAST_ROOT/var/lib/outlast/tmp/left-by-an-earlier-boot" ]]
}

@test "a second startup script of the same boot leaves temporary files alone" {
  run -0 vm::boot
  touch "$OUTLAST_ROOT/var/lib/outlast/tmp/of-the-trainer"
  run -0 vm::boot
  [[ -e "$OUTLAST_ROOT/var/lib/outlast/tmp/of-the-trainer" ]]
}

@test "apt is tried until its lock is free" {
  local message
  for message in 'E: Could not get lock /var/lib/apt/lists/lock. It is held by process 9 (apt-get)' \
    'E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process using it?' \
    'E: Unable to lock directory /var/lib/apt/lists/' \
    'W: Failed to fetch http://mirror/InRelease  Temporary failure resolving'; do
    functions_in_a_shell 12 "$message"
  done
}

# functions_in_a_shell TIMES MESSAGE: apt::install, which fails so many times.
functions_in_a_shell() {
  : >"$CLOUD/calls"
  apt_fails "$1" "$2"
  (functions && apt::install some-package)
  [[ "$(calls '^apt-get .*DPkg::Lock::Timeout=30 install .* -- some-package$')" == "$(($1 + 1))" ]]
}

@test "a lock that stays taken ends the installation" {
  apt_fails 1000 'E: Could not get lock /var/lib/dpkg/lock-frontend'
  functions
  APT_PATIENCE=5
  run -100 apt::install some-package
  grep -q 'Could not get lock' "$LOG_DIR/apt.log"
  said 'another process has the lock for'
}

@test "a package that does not exist is tried three times, no longer" {
  apt_fails 1000 'E: Unable to locate package some-package'
  functions
  run -100 apt::install some-package
  [[ "$(calls '^apt-get .*install')" == 3 ]]
}

@test "lists that cannot be read do not matter where the package can be installed" {
  command_in "$OUTLAST_ROOT/bin/apt-get" "
echo apt-get \"\$@\" >>'$CLOUD/calls'
[[ \$* != *update* ]] || { echo 'E: The repository is not signed' >&2; exit 100; }"
  functions
  apt::install some-package
  [[ "$(calls '^apt-get .*install')" == 1 ]]
}

@test "what a cut installation has left is completed first" {
  apt_fails 1 'E: dpkg was interrupted, you must manually run "dpkg --configure -a" to correct the problem.'
  functions
  apt::install some-package
  [[ "$(calls '^dpkg --configure -a$')" == 1 ]]
}

@test "names that dpkg only knows, and patterns that match nothing, are no installed packages" {
  command_in "$OUTLAST_ROOT/bin/dpkg-query" \
    "printf '%s\n' 'installed one' 'not-installed two' 'config-files three'; exit 1"
  functions
  set -euo pipefail
  [[ "$(apt::installed 'o*' 'x*')" == one ]]
  command_in "$OUTLAST_ROOT/bin/dpkg-query" "exit 1"
  [[ -z "$(apt::installed 'x*')" ]]
  command_in "$OUTLAST_ROOT/bin/dpkg-query" "exit 2"
  run ! apt::installed 'x*'
}

@test "a machine on which apt inhibits a shutdown is powered off by systemd" {
  run -0 vm::boot
  command_in "$OUTLAST_ROOT/bin/poweroff" 'echo "Call to PowerOff failed: Access denied" >&2; exit 1'
  run -0 /bin/bash "$OUTLAST_ROOT/var/lib/outlast/boot.sh" supervise "$PYTHON" \
    "$(echo "$OUTLAST_ROOT"/var/lib/outlast/bundle/*)"
  local start='--no-block --job-mode=replace-irreversibly start poweroff.target'
  [[ "$(tail -n 1 "$CLOUD/calls")" == "systemctl $start" ]]
  grep -qx -- "ExecStopPost=-systemctl $start" \
    "$OUTLAST_ROOT/run/systemd/system/outlast-supervisor.service"
}
