#!/bin/bash
#
# The operating system around the scripts: its upgrades, package manager and temporary files. Sourced
# after lib.sh; sets no shell options and does nothing when sourced.
#
# At first boot Debian and Ubuntu upgrade themselves. That takes apt's locks, restarts services and
# delays a shutdown for 30 seconds, as long as a preemption lasts.

# Other scripts use these variables:
# shellcheck disable=SC2034

# For temporary files: /tmp may be in memory, with at most half of it, and may forbid execution.
readonly SCRATCH_DIR="$STATE_DIR/tmp"

readonly UPGRADE_UNITS=(apt-daily.timer apt-daily.service apt-daily-upgrade.timer
  apt-daily-upgrade.service unattended-upgrades.service)

# Seconds that apt itself waits for dpkg's lock; then the scripts log that and try again.
readonly APT_LOCK_SEC=30

# Tenths of a second to wait for locks and for an unreachable index. Any other failure is final after
# APT_TRIES tries.
APT_PATIENCE=6000
readonly APT_TRIES=3
readonly APT_LOCKED='Could not get lock|Unable to (acquire|lock)|is another process using it|frontend lock was locked'
readonly APT_UNREACHABLE='Failed to fetch|Temporary failure resolving|Could not (resolve|connect)|Connection (failed|timed out)|Unable to connect|Hash Sum mismatch|unexpected size'
readonly DPKG_INTERRUPTED='dpkg was interrupted'

# system::owns COMMAND: whether the command exists and belongs to this VM. With OUTLAST_ROOT, commands
# outside of it belong to another system.
system::owns() {
  [[ "$(command -v "$1")" == "$ROOT"/* ]]
}

# system::has_systemd: whether systemd is the first process of this VM.
system::has_systemd() {
  [[ -d $ROOT/run/systemd/system ]]
}

# system::use_scratch: sets TMPDIR to a folder on the boot disk, for every process started from now on.
system::use_scratch() {
  mkdir -p "$SCRATCH_DIR" && chmod 1777 "$SCRATCH_DIR" && export TMPDIR="$SCRATCH_DIR"
}

# system::quiet: turns off upgrades until the next boot, and removes delays of a shutdown. A running
# upgrade may finish its current package, because killing dpkg would break that.
system::quiet() {
  local folder="$ROOT/run/systemd/logind.conf.d"
  if system::has_systemd && system::owns systemctl; then
    systemctl mask --runtime "${UPGRADE_UNITS[@]}" >/dev/null 2>&1 || true
    systemctl stop --no-block "${UPGRADE_UNITS[@]}" >/dev/null 2>&1 || true
    # The last file name over all folders wins, and unattended-upgrades has its own file.
    if mkdir -p "$folder" &&
      printf '%s\n' '[Login]' InhibitDelayMaxSec=0 PowerKeyIgnoreInhibited=yes \
        >"$folder/zz-outlast.conf"; then
      systemctl kill --signal=HUP systemd-logind.service >/dev/null 2>&1 || true
    fi
  fi
  system::keep_services
}

# system::keep_services: keeps needrestart from restarting Outlast's services after an upgrade.
system::keep_services() {
  local folder="$ROOT/etc/needrestart/conf.d"
  if [[ -d $folder && ! -e $folder/outlast.conf ]]; then
    # shellcheck disable=SC2016
    printf '$nrconf{override_rc}{qr(^outlast-)} = 0;\n' >"$folder/outlast.conf" || true
  fi
}

# system::power_off: powers the machine off. While apt installs, it inhibits a shutdown, and logind
# refuses one, from systemd 257 on to root too; systemd itself does not ask.
system::power_off() {
  poweroff && return
  system::has_systemd || return
  systemctl --no-block --job-mode=replace-irreversibly start poweroff.target
}

# ---- packages -----------------------------------------------------------------------------------

# apt::get ARGUMENTS...: runs apt-get without questions, with all its output on stdout.
apt::get() {
  DEBIAN_FRONTEND=noninteractive LC_ALL=C NEEDRESTART_SUSPEND=1 \
    apt-get -o "DPkg::Lock::Timeout=$APT_LOCK_SEC" "$@" 2>&1 </dev/null
}

# apt::install NAME...: installs packages from fresh lists; its output goes to STEP_LOG. A broken
# repository is not a failure if the packages are in another one. Waits for locks, whose holders end
# within minutes.
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

# apt::may_succeed OUTPUT TRIES UNTIL: whether to try a failed installation again. Completes an
# interrupted installation.
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

# apt::installed PATTERN...: prints the names of matching installed packages, one per line. dpkg also
# lists names that other packages mention, and returns 1 if a pattern matches nothing.
apt::installed() {
  local found
  found="$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null ||
    (($? == 1)))" || return
  awk '$1 == "installed" { print $2 }' <<<"$found"
}
