#!/bin/bash
#
# The operating system around the scripts: its own upgrades, its package manager, its temporary
# files. Sourced after lib.sh; sets no shell options and does nothing by itself.
#
# At first boot Debian and Ubuntu upgrade themselves. That takes apt's locks, restarts services and
# holds up a shutdown for 30 seconds, as long as a preemption lasts.

# This file is read by its neighbours:
# shellcheck disable=SC2034

# Temporary files. /tmp may be in memory, at half of it or less, and may forbid execution.
readonly SCRATCH_DIR="$STATE_DIR/tmp"

readonly UPGRADE_UNITS=(apt-daily.timer apt-daily.service apt-daily-upgrade.timer
  apt-daily-upgrade.service unattended-upgrades.service)

# How long apt itself waits for dpkg's lock; then a line says so, and it is tried again.
readonly APT_LOCK_SEC=30

# Tenths of a second for locks, and for an index that cannot be reached. Any other failure is final
# after APT_TRIES.
APT_PATIENCE=6000
readonly APT_TRIES=3
readonly APT_LOCKED='Could not get lock|Unable to (acquire|lock)|is another process using it|frontend lock was locked'
readonly APT_UNREACHABLE='Failed to fetch|Temporary failure resolving|Could not (resolve|connect)|Connection (failed|timed out)|Unable to connect|Hash Sum mismatch|unexpected size'
readonly DPKG_INTERRUPTED='dpkg was interrupted'

# system::owns COMMAND: it is there and belongs to this VM. With OUTLAST_ROOT set, the commands
# outside of it belong to another system.
system::owns() {
  [[ "$(command -v "$1")" == "$ROOT"/* ]]
}

# system::has_systemd: systemd runs, as the first process of this VM.
system::has_systemd() {
  [[ -d $ROOT/run/systemd/system ]]
}

# system::use_scratch: TMPDIR is on the boot disk from here on, for every process started.
system::use_scratch() {
  mkdir -p "$SCRATCH_DIR" && chmod 1777 "$SCRATCH_DIR" && export TMPDIR="$SCRATCH_DIR"
}

# system::quiet: until the next boot nothing upgrades itself, and a shutdown is heard at once.
# An upgrade at work is left to finish the package in hand: killing dpkg would break it.
system::quiet() {
  local folder="$ROOT/run/systemd/logind.conf.d"
  if system::has_systemd && system::owns systemctl; then
    systemctl mask --runtime "${UPGRADE_UNITS[@]}" >/dev/null 2>&1 || true
    systemctl stop --no-block "${UPGRADE_UNITS[@]}" >/dev/null 2>&1 || true
    # Of all folders the last name counts, and unattended-upgrades has its own file.
    if mkdir -p "$folder" &&
      printf '%s\n' '[Login]' InhibitDelayMaxSec=0 PowerKeyIgnoreInhibited=yes \
        >"$folder/zz-outlast.conf"; then
      systemctl kill --signal=HUP systemd-logind.service >/dev/null 2>&1 || true
    fi
  fi
  system::keep_services
}

# system::keep_services: needrestart, which restarts services after an upgrade, leaves ours alone.
system::keep_services() {
  local folder="$ROOT/etc/needrestart/conf.d"
  if [[ -d $folder && ! -e $folder/outlast.conf ]]; then
    # shellcheck disable=SC2016
    printf '$nrconf{override_rc}{qr(^outlast-)} = 0;\n' >"$folder/outlast.conf" || true
  fi
}

# ---- packages -----------------------------------------------------------------------------------

# apt::get ARGUMENTS...: apt-get that asks nothing, its output on stdout.
apt::get() {
  DEBIAN_FRONTEND=noninteractive LC_ALL=C NEEDRESTART_SUSPEND=1 \
    apt-get -o "DPkg::Lock::Timeout=$APT_LOCK_SEC" "$@" 2>&1 </dev/null
}

# apt::install NAME...: from fresh lists, into STEP_LOG. Lists of a broken repository are no reason
# to fail where the packages are in another. Waits for locks: their holders end within minutes.
apt::install() {
  local names=("$@") output="$STATE_DIR/apt-output" until delay n=0 rc
  until=$(($(time::tenths) + APT_PATIENCE))
  delay="$(retry::first_delay)"
  while :; do
    rc=0
    apt::get update -q >"$output" || true
    apt::get install -qy --no-install-recommends -- "${names[@]}" >>"$output" || rc=$?
    cat "$output" >>"$STEP_LOG"
    n=$((n + 1))
    if ((rc == 0)) || ! apt::may_succeed "$output" "$n" "$until"; then
      break
    fi
    time::sleep_tenths "$delay"
    delay="$(retry::next_delay "$delay")"
  done
  rm -f "$output"
  return "$rc"
}

# apt::may_succeed OUTPUT TRIES UNTIL: whether a failed installation is worth another try. Puts
# right what a cut installation has left.
apt::may_succeed() {
  local why=""
  if grep -qE "$DPKG_INTERRUPTED" "$1"; then
    log::warn "$CURRENT_STEP" "apt: an earlier installation was cut; completing it"
    DEBIAN_FRONTEND=noninteractive dpkg --configure -a >>"$STEP_LOG" 2>&1 </dev/null || true
    (($2 < APT_TRIES))
    return
  fi
  if grep -qE "$APT_LOCKED" "$1"; then
    why="another process has the lock"
  elif grep -qE "$APT_UNREACHABLE" "$1"; then
    why="a package index did not answer"
  else
    (($2 < APT_TRIES))
    return
  fi
  if (($(time::tenths) >= $3)); then
    log::warn "$CURRENT_STEP" "apt: $why for $((APT_PATIENCE / 600)) minutes"
    return 1
  fi
  log::info "$CURRENT_STEP" "apt: $why; waiting"
}

# apt::installed PATTERN...: prints the names of the installed packages that match, one a line. dpkg
# also knows names that others mention, and ends with 1 where one pattern matches nothing.
apt::installed() {
  local found
  found="$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null ||
    (($? == 1)))" || return
  awk '$1 == "installed" { print $2 }' <<<"$found"
}
