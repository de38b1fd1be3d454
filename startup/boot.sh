#!/bin/bash
#
# Runs at every boot of a VM, as root, started by the guest agent as its `startup-script`: writes
# the boot record, fetches the bundle, prepares the interpreter, starts the supervisor. Each step
# may be cut off at any line and is repeated at the next boot.
#
# Usage: boot.sh                           the boot
#        boot.sh supervise PYTHON BUNDLE   run the supervisor to its end; the systemd unit's command
#
# Metadata (instance/attributes): outlast-bucket, outlast-prefix, outlast-run, outlast-resume,
#   outlast-placement, outlast-bundle, outlast-bundle-sha256, outlast-delivery (`image`),
#   outlast-timeouts (`iam_propagation`, `silence`, `backoff`), outlast-health (PORT and LIMIT_SEC).
# Environment: lib.sh lists it; PIP_* reaches pip if the image has no interpreter baked in.
#
# A failure powers the VM off, so that its group tries again. If the next boot would fail too, the VM
# leaves the group first: if the metadata, the bundle or the image is at fault; if the bucket still
# refuses after the `iam_propagation` wait; if the bucket or the metadata server gives no answer for
# `silence`; and after MAX_NO_PROGRESS boots in a row without an attempt, for the same resume and
# placement, or before one more would exceed FAILED_BOOTS_SEC. A VM that gets no token for its group can
# only power off. The supervisor ends only to end the machine, or by a crash, so the VM powers off after
# it with any exit code.
#
# Exit codes: 0 the supervisor runs (systemd) or is done; 75 stopped by a signal before it ran; 1 or
# 22 a step failed; else the supervisor's exit code (outlast/base/exits.py lists them).

set -euo pipefail

# The metadata has one script: outlast/spec/startup_script.py replaces these lines with the files.
# shellcheck source=startup/lib.sh
source "${BASH_SOURCE[0]%/*}/lib.sh"
# shellcheck source=startup/system.sh
source "${BASH_SOURCE[0]%/*}/system.sh"
# shellcheck source=startup/interpreter.sh
source "${BASH_SOURCE[0]%/*}/interpreter.sh"
# shellcheck source=startup/leave.sh
source "${BASH_SOURCE[0]%/*}/leave.sh"
# shellcheck source=startup/ssd.sh
source "${BASH_SOURCE[0]%/*}/ssd.sh"

# The unit needs this script after the guest agent has removed its own copy.
readonly KEPT_SCRIPT="$STATE_DIR/boot.sh"

readonly NETWORK_UNITS="network.target network-online.target nss-lookup.target \
systemd-networkd.service systemd-resolved.service networking.service NetworkManager.service"

# Tenths of a second for the calls that report the end of a boot; less if IAM_PROPAGATION is shorter.
readonly LAST_WORDS_TENTHS=300

# Seconds that boots in a row without an attempt may take in all: they train nothing and are billed.
readonly FAILED_BOOTS_SEC=1200

# Set by boot::read_metadata.
RESUME=""
PLACEMENT=""
BUNDLE_NAME=""
BUNDLE_SHA256=""
INSTANCE_ID=""
INSTANCE=""
ZONE=""
BOOT_ID=""
RUN_PREFIX=""
BOOT_RECORD=""

# Set by later steps.
PYTHON=""

# Set before an intended exit; any other exit is a failed boot.
SETTLED=""

# ---- steps --------------------------------------------------------------------------------------

boot::check_tools() {
  local tool missing=()
  for tool in awk curl flock grep mktemp sha256sum tail; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  if ((${#missing[@]} > 0)); then
    step::never "${missing[*]}: missing; choose an image that has them"
    return 1
  fi
}

# boot::read_metadata: reads this VM's identity and its run, and sets the names that follow from them.
boot::read_metadata() {
  local keys=(bucket prefix run resume placement bundle bundle-sha256)
  retry::until_answered metadata::load id name zone \
    "${keys[@]/#/attributes/outlast-}" attributes/outlast-timeouts attributes/outlast-health \
    attributes/outlast-delivery \
    network-interfaces/0/ip || {
    step::never "the metadata server gives no complete answer"
    return 1
  }
  metadata::require id name zone "${keys[@]/#/attributes/outlast-}" || {
    HOPELESS="$LAST_ERROR"
    return "$STATUS_ABSENT"
  }
  INSTANCE_ID="${METADATA["id"]}"
  INSTANCE="${METADATA["name"]}"
  ZONE="${METADATA["zone"]##*/}"
  BUCKET="${METADATA["attributes/outlast-bucket"]}"
  RESUME="${METADATA["attributes/outlast-resume"]}"
  PLACEMENT="${METADATA["attributes/outlast-placement"]}"
  BUNDLE_NAME="${METADATA["attributes/outlast-bundle"]}"
  BUNDLE_SHA256="${METADATA["attributes/outlast-bundle-sha256"]}"
  boot::check_count outlast-resume "$RESUME" || return
  boot::check_count outlast-placement "$PLACEMENT" || return
  timeouts::read "${METADATA["attributes/outlast-timeouts"]:-}"
  BOOT_ID="$(<"$ROOT/proc/sys/kernel/random/boot_id")" || return
  RUN_PREFIX="${METADATA["attributes/outlast-prefix"]}/${METADATA["attributes/outlast-run"]}"
  BOOT_RECORD="$RUN_PREFIX/boots/$INSTANCE_ID-$BOOT_ID.json"
}

# boot::check_count KEY VALUE
boot::check_count() {
  if [[ ! $2 =~ ^(0|[1-9][0-9]{0,8})$ ]]; then
    step::never "metadata key $1 is '$2': must be a whole number, 0 or more"
    return 1
  fi
}

# boot::record: writes the record of this boot's start. outlast/bucket/layout.py has its schema.
boot::record() {
  json::object format:=1 boot_id="$BOOT_ID" instance="$INSTANCE" instance_id="$INSTANCE_ID" \
    placement:="$PLACEMENT" resume:="$RESUME" time="$(time::now)" zone="$ZONE" >"$RUN_DIR/record" || return
  http::persist "boot record gs://$BUCKET/$BOOT_RECORD" \
    gcs::create "$BUCKET" "$BOOT_RECORD" "$RUN_DIR/record"
}

# boot::fetch_bundle: puts the bundle with the metadata's sha256 into BUNDLE_DIR, from the bucket or,
# if the delivery is `image`, from the image. A folder of that name is complete, because it was moved
# there in one step.
boot::fetch_bundle() {
  local wanted="$BUNDLE_SHA256" where="bundle gs://$BUCKET/$BUNDLE_NAME" found work baked=""
  if [[ ! $wanted =~ ^[0-9a-f]{64}$ ]]; then
    step::never "metadata key outlast-bundle-sha256 is '$wanted': must be 64 hexadecimal digits"
    return 1
  fi
  BUNDLE_DIR="$STATE_DIR/bundle/$wanted"
  if [[ -d $BUNDLE_DIR ]]; then
    log::info "$CURRENT_STEP" "$wanted is there already"
    return 0
  fi
  rm -rf "$STATE_DIR"/bundle/tmp-*
  mkdir -p "$STATE_DIR/bundle"
  work="$(mktemp -d "$STATE_DIR/bundle/tmp-XXXXXX")" || return
  if [[ ${METADATA["attributes/outlast-delivery"]:-} == image ]]; then
    baked="$ROOT/opt/outlast/bundles/$wanted.zip"
    where="bundle /opt/outlast/bundles/$wanted.zip"
    if [[ ! -f $baked ]]; then
      step::never "$where: is not in the image; bake one of this checkout, or set" \
        "outlast:delivery to bucket"
      return 1
    fi
    cp -- "$baked" "$work/bundle.zip" || return
  else
    http::persist "$where" gcs::get "$BUCKET" "$BUNDLE_NAME" "$work/bundle.zip" || return
  fi
  found="$(boot::sha256 "$work/bundle.zip")" || return
  if [[ $found != "$wanted" && -z $baked ]]; then # once more, as it may have been damaged on its way
    http::persist "$where" gcs::get "$BUCKET" "$BUNDLE_NAME" "$work/bundle.zip" || return
    found="$(boot::sha256 "$work/bundle.zip")" || return
  fi
  if [[ $found != "$wanted" ]]; then
    step::never "$where: sha256 is $found, must be $wanted as the template says;" \
      "${baked:+bake the image again, or }run pulumi up again"
    return 1
  fi
  # -I ignores the current folder.
  if ! "$BASE_PYTHON" -I -m zipfile -e "$work/bundle.zip" "$work/bundle" >&2; then
    if "$BASE_PYTHON" -I -m zipfile -t "$work/bundle.zip" >/dev/null 2>&1; then
      log::error "$CURRENT_STEP" "$where: could not be unpacked"
    else
      step::never "$where: is not a zip file"
    fi
    return 1
  fi
  mv -T "$work/bundle" "$BUNDLE_DIR" && rm -rf "$work"
}

boot::sha256() {
  local found
  found="$(sha256sum <"$1")" || return
  printf '%s' "${found%% *}"
}

# boot::start_health: starts the process that answers the platform's health checks, before anything
# that takes long. It listens on the VM's own address, which the platform probes.
boot::start_health() {
  local address="${METADATA["network-interfaces/0/ip"]:-0.0.0.0}" port limit python
  read -r port limit <<<"${METADATA["attributes/outlast-health"]}"
  python="$(command -v "$BASE_PYTHON")" || return
  local argv=("$python" -I "$BUNDLE_DIR/outlast/supervisor/health.py" "$address" "$port" "$limit"
    "$SIGN_FILE")
  rm -f "$SIGN_FILE"
  : >"$SIGN_FILE" || return
  if ! system::has_systemd; then
    "${argv[@]}" >>"$LOG_DIR/health.log" 2>&1 9>&- &
    return 0
  fi
  local unit="$ROOT/run/systemd/system/outlast-health.service"
  cat >"$unit.tmp" <<UNIT
[Unit]
Description=Outlast health
Wants=network-online.target
After=$NETWORK_UNITS

[Service]
Type=exec
ExecStart=${argv[*]}
Restart=always
OOMScoreAdjust=-500
UNIT
  mv -f "$unit.tmp" "$unit" && systemctl daemon-reload &&
    systemctl start --no-block outlast-health.service
}

# boot::make_interpreter: sets PYTHON to the baked interpreter, or else to that of a virtual
# environment with the bundle's hashed requirements.
boot::make_interpreter() {
  if [[ $BASE_PYTHON == */* ]]; then
    PYTHON="$BASE_PYTHON"
    return 0
  fi
  PYTHON="$STATE_DIR/venv/bin/python"
  python::make_environment "$STATE_DIR/venv" vm.txt "give the VM access to the package index" \
    --require-hashes
}

# ---- the supervisor -----------------------------------------------------------------------------

# boot::start_unit: starts the supervisor as a separate unit, because a shutdown kills the guest
# agent's unit without its children. KillMode=mixed sends SIGTERM only to this script, which passes it
# on, and SIGKILL to all processes at the end. The unit is ordered after everything that may run the
# network, also by name because an inactive target orders nothing, so that it stops before the
# network. It is not ordered against google-shutdown-scripts.service: either order would take seconds
# from the notice. OOMPolicy: if the kernel kills a trainer, the attempt ends, but not the unit.
# ExecStopPost powers the VM off if this script itself is killed.
boot::start_unit() {
  local unit="$ROOT/run/systemd/system/outlast-supervisor.service"
  cp -- "${BASH_SOURCE[0]}" "$KEPT_SCRIPT.tmp" && mv -f "$KEPT_SCRIPT.tmp" "$KEPT_SCRIPT" || return
  cat >"$unit.tmp" <<UNIT
[Unit]
Description=Outlast supervisor
Wants=network-online.target
After=$NETWORK_UNITS

[Service]
Type=exec
Environment=HOME=/root
ExecStart=/bin/bash $KEPT_SCRIPT supervise $PYTHON $BUNDLE_DIR
ExecStopPost=-systemctl --no-block --job-mode=replace-irreversibly start poweroff.target
KillMode=mixed
KillSignal=SIGTERM
TimeoutStopSec=110
Restart=no
OOMPolicy=continue
LimitMEMLOCK=infinity
LimitNOFILE=1048576
TasksMax=infinity
UNIT
  mv -f "$unit.tmp" "$unit" && systemctl daemon-reload &&
    systemctl start --no-block outlast-supervisor.service
}

# boot::supervise PYTHON BUNDLE: runs the supervisor to its end, passing signals on, then powers
# off. Returns its exit code.
boot::supervise() {
  local python="$1" bundle="$2" child="" signals=0 seen rc
  STEP_LOG="$LOG_DIR/supervisor.log"
  # SIGINT is passed on as SIGTERM too: bash starts background children with SIGINT ignored.
  trap 'signals=$((signals + 1)); [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true' \
    TERM INT
  (
    cd "$bundle"
    unset PYTHONDONTWRITEBYTECODE PYTHONHOME
    export PYTHONPATH="$bundle" OUTLAST_BUNDLE_DIR="$bundle"
    exec "$python" -P -m outlast.supervisor vm
  ) >>"$STEP_LOG" 2>&1 9>&- &
  child=$!
  if ((signals > 0)); then
    kill -TERM "$child" 2>/dev/null || true
  fi
  printf '%s\n' "$child" >"$RUN_DIR/ready.tmp" && mv -f "$RUN_DIR/ready.tmp" "$RUN_DIR/ready"
  log::info supervisor "runs as process $child"
  # A trapped signal ends `wait` early; the next `wait` still gets the child's status.
  while :; do
    seen="$signals"
    rc=0
    wait "$child" || rc=$?
    if ((signals == seen)); then
      break
    fi
  done
  rm -f "$RUN_DIR/ready"
  trap 'SETTLED=1; exit "$EXIT_INTERRUPTED"' TERM INT
  log::info supervisor "ended rc=$rc"
  case "$rc" in
  "$EXIT_DONE" | "$EXIT_INTERRUPTED" | "$EXIT_FENCED") ;;
  *)
    if ((signals == 0)); then
      boot::judge_crash "$rc"
    fi
    ;;
  esac
  SETTLED=1
  boot::power_off
  return "$rc"
}

# boot::judge_crash RC: handles an unexpected end of the supervisor. If this boot has an attempt, its
# records say how it ended, and the next VM resumes. If not, the boot has failed. Every VM of this
# template would meet what EXIT_USAGE stands for, and a module that is missing.
boot::judge_crash() {
  local message="the supervisor ended unexpectedly with status $1" last
  last="$(tail -n 1 "$STEP_LOG")"
  CURRENT_STEP=supervisor
  log::error supervisor "$message: $last"
  boot::give_last_words
  if [[ -z $BOOT_RECORD ]]; then
    boot::read_metadata || return 0
    boot::give_last_words
  fi
  if ! boots::find_unattempted; then
    boot::judge_uncounted
  elif grep -qxF "$BOOT_RECORD" "$RUN_DIR/unattempted"; then
    boot::record_end "$REASON_SETUP_FAILED" "$1" "$message"
    boot::count_unattempted
  fi
  if [[ $1 == "$EXIT_USAGE" || $last =~ ^(ModuleNotFound|Import)Error: ]]; then
    HOPELESS="$last"
  fi
  boot::leave_if_hopeless
}

# ---- a boot that failed -------------------------------------------------------------------------

# boots::find_unattempted: lists in RUN_DIR/unattempted the boots in a row without an attempt,
# including this one: the boot records of this resume and placement that are newer, by the server's
# clock, than the start record of the newest attempt. Other resumes and placements do not count,
# because something was changed in between.
boots::find_unattempted() {
  local newest="" folder start names=() argv=() name n=0
  local same="\"placement\":$PLACEMENT,\"resume\":$RESUME,"
  http::persist "attempts" gcs::list "$BUCKET" "$RUN_PREFIX/attempts/" "$RUN_DIR/list" || return
  while IFS= read -r folder; do
    start="$RUN_DIR/start"
    if gcs::stat "$BUCKET" "${folder}start.json" "$start"; then
      newest="$(json::flatten <"$start" | awk -F '\t' '$1 == "timeCreated" { print $2 }')"
      break
    elif [[ $HTTP_STATUS != 404 ]]; then
      return 1
    fi
  done < <(grep '/$' "$RUN_DIR/list" | LC_ALL=C sort -r)
  http::persist "boots" gcs::list "$BUCKET" "$RUN_PREFIX/boots/" "$RUN_DIR/list" || return
  # The newest are enough to count to MAX_NO_PROGRESS.
  mapfile -t names < <(
    awk -F '\t' -v newest="$newest" '
      $1 ~ /\.json$/ && $1 !~ /\.end\.json$/ && $2 > newest { print $2 "\t" $1 }
    ' "$RUN_DIR/list" | LC_ALL=C sort -r | head -n 100 | cut -f 2
  )
  : >"$RUN_DIR/unattempted"
  if ((${#names[@]} == 0)); then
    return 0
  fi
  rm -rf "$RUN_DIR/boots"
  mkdir -p "$RUN_DIR/boots"
  for name in "${names[@]}"; do
    argv+=(--output "$RUN_DIR/boots/$n"
      "$STORAGE_URL/storage/v1/b/$BUCKET/o/$(url::quote "$name")?alt=media")
    n=$((n + 1))
  done
  "${CURL[@]}" --max-time 60 --fail --header "@$RUN_DIR/authorization" "${argv[@]}" || true
  n=0
  for name in "${names[@]}"; do
    if grep -qsF "$same" "$RUN_DIR/boots/$n"; then
      printf '%s\n' "$name" >>"$RUN_DIR/unattempted"
    fi
    n=$((n + 1))
  done
  rm -rf "$RUN_DIR/boots"
}

# boot::count_unattempted: sets HOPELESS if boots::find_unattempted found too many boots in a row, or if
# one more like this one would take them beyond FAILED_BOOTS_SEC.
boot::count_unattempted() {
  local count spent
  count="$(wc -l <"$RUN_DIR/unattempted")"
  spent=$(($(boots::spent) + SECONDS))
  log::warn "$CURRENT_STEP" "boot $count in a row without an attempt; $MAX_NO_PROGRESS leave the group"
  if ((count >= MAX_NO_PROGRESS)); then
    HOPELESS="$count boots in a row without an attempt"
  elif ((spent + SECONDS > FAILED_BOOTS_SEC)); then
    HOPELESS="boots in a row without an attempt: $count, which took $spent s"
  fi
}

# boots::spent: prints the seconds that the boots in RUN_DIR/unattempted took, without this one, by the
# server's times of their first and last records.
boots::spent() {
  awk -F '\t' -v own="$BOOT_RECORD" '
    function seconds(time,  year, month) {
      year = substr(time, 1, 4)
      month = substr(time, 6, 2) + 0
      if (month < 3) { year--; month += 12 }
      return 86400 * (365 * year + int(year / 4) - int(year / 100) + int(year / 400) \
        + int((153 * (month - 3) + 2) / 5) + substr(time, 9, 2)) \
        + 3600 * substr(time, 12, 2) + 60 * substr(time, 15, 2) + substr(time, 18, 2)
    }
    FNR == NR { created[$1] = $2; next }
    $1 != own {
      end = $1
      sub(/\.json$/, ".end.json", end)
      if (end in created) sum += seconds(created[end]) - seconds(created[$1])
    }
    END { printf "%d", sum }
  ' "$RUN_DIR/list" "$RUN_DIR/unattempted"
}

# boot::judge_uncounted: sets HOPELESS if the bucket refuses what counting needs, for example because
# it is gone or its reader pays. Without a usable answer, another VM may succeed.
boot::judge_uncounted() {
  if ! http::is_undecided && [[ $HTTP_STATUS != 401 ]]; then
    HOPELESS="${GIVEN_UP:-earlier boots cannot be read: status $HTTP_STATUS}"
  fi
}

boot::leave_if_hopeless() {
  if [[ -n $HOPELESS ]]; then
    log::error "$CURRENT_STEP" "this VM leaves its group, as the next one would fail too: $HOPELESS"
    leave::group "${METADATA["id"]:-}" ||
      log::error "$CURRENT_STEP" "without a token this VM cannot leave its group, which will recreate it"
  fi
}

# boot::record_end REASON EXIT MESSAGE: writes the record of this boot's end, with the last lines of
# the step's log. outlast/bucket/layout.py has its schema.
boot::record_end() {
  local message="$3"
  if [[ -n $STEP_LOG && -s $STEP_LOG ]]; then
    message+=$'\n'"$(tail -n "$LAST_LINES" "$STEP_LOG")"
  fi
  json::object format:=1 boot_id="$BOOT_ID" exit:="$2" instance_id="$INSTANCE_ID" \
    message="$message" reason="$1" step="$CURRENT_STEP" time="$(time::now)" \
    >"$RUN_DIR/record" || return
  http::persist "the boot's end" gcs::create "$BUCKET" "${BOOT_RECORD%.json}.end.json" \
    "$RUN_DIR/record" || true
}

# boot::give_last_words: gives the last calls a short budget and a fresh token.
boot::give_last_words() {
  rm -f "$RUN_DIR/authorization"
  GIVEN_UP=""
  LAST_WORDS=1
  CALL_SEC=$((LAST_WORDS_TENTHS / 10))
  IAM_UNTIL=$(($(time::tenths) + (IAM_PROPAGATION < LAST_WORDS_TENTHS ? IAM_PROPAGATION : LAST_WORDS_TENTHS)))
  SILENT_UNTIL="$IAM_UNTIL"
}

# boot::fail RC: ends a boot whose step CURRENT_STEP failed.
boot::fail() {
  local rc="$1" reason="$REASON_SETUP_FAILED"
  local message="${LAST_ERROR:-step $CURRENT_STEP failed with status $rc}"
  if [[ $HTTP_STATUS =~ ^40[13]$ ]]; then
    reason="$REASON_FORBIDDEN"
  fi
  log::error "$CURRENT_STEP" "this boot is over: $message"
  HOPELESS="${HOPELESS:-$GIVEN_UP}"
  if [[ -n $BOOT_RECORD ]]; then
    boot::give_last_words
    boot::record_end "$reason" "$rc" "$message"
    if [[ -z $HOPELESS ]]; then
      if boots::find_unattempted; then
        boot::count_unattempted
      else
        boot::judge_uncounted
      fi
    fi
  fi
  boot::leave_if_hopeless
  boot::power_off
}

# boot::power_off: powers the machine off, unless it is stopping already.
boot::power_off() {
  if system::has_systemd && [[ "$(systemctl is-system-running 2>/dev/null)" == stopping ]]; then
    log::info power-off "the machine is going down already"
    return 0
  fi
  log::info power-off "powering off"
  system::power_off || log::warn power-off "poweroff returned $?"
}

# boot::on_exit: treats an unintended exit of this script as a failed boot.
boot::on_exit() {
  local rc=$?
  if [[ -z $SETTLED ]]; then
    SETTLED=1
    set +e
    boot::fail "$rc"
  fi
}

# ---- entry --------------------------------------------------------------------------------------

boot::run() {
  mkdir -p "$STATE_DIR" "$RUN_DIR" "$LOG_DIR"
  # Someone may start the script a second time by hand in the same boot.
  exec 9>"$RUN_DIR/boot.lock"
  if command -v flock >/dev/null && ! flock --nonblock 9; then
    log::info start "another startup script is at work"
    return 0
  fi
  trap boot::on_exit EXIT
  if [[ ! -e $RUN_DIR/scratch ]]; then
    rm -rf "$SCRATCH_DIR" # of an earlier boot
    : >"$RUN_DIR/scratch"
  fi
  system::use_scratch
  silence::begin
  # A boot of a machine that is stopping has not failed.
  trap 'SETTLED=1; exit "$EXIT_INTERRUPTED"' TERM INT
  rm -f "$RUN_DIR/ready" "$RUN_DIR/authorization"
  step::run quiet-system system::quiet
  step::run check-tools boot::check_tools
  step::run read-metadata boot::read_metadata
  step::run record-boot boot::record
  step::run mount-ssd ssd::mount
  step::run find-python python::find
  step::run fetch-bundle boot::fetch_bundle
  if [[ -n ${METADATA["attributes/outlast-health"]:-} ]]; then
    step::run start-health boot::start_health
  fi
  step::run make-interpreter boot::make_interpreter
  if system::has_systemd; then
    step::run start-unit boot::start_unit
    SETTLED=1
  else
    CURRENT_STEP=supervisor
    boot::supervise "$PYTHON" "$BUNDLE_DIR"
  fi
}

main() {
  if (($# == 0)); then
    boot::run
  elif (($# == 3)) && [[ $1 == supervise ]]; then
    system::use_scratch
    boot::supervise "$2" "$3"
  else
    printf 'usage: boot.sh [supervise PYTHON BUNDLE]\n' >&2
    return "$EXIT_USAGE"
  fi
}

main "$@"
