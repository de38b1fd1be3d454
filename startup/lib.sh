#!/bin/bash
#
# Shared by the startup scripts: log lines, metadata, HTTP with the VM's own token, objects of the
# bucket, JSON. Sourced first; sets no shell options and does nothing when sourced.
#
# Environment (all optional, empty on Compute Engine):
#   OUTLAST_ROOT              prefix of every absolute path
#   METADATA_BASE             metadata server, up to and including /computeMetadata/v1
#   STORAGE_EMULATOR_HOST     storage endpoint without a path
#   OUTLAST_COMPUTE_ENDPOINT  Compute API, up to and including /compute/v1/
# Needs bash 5, curl 7.76 and the usual awk, grep, date, sleep, tail.

# Other scripts use these variables:
# shellcheck disable=SC2034

# outlast/base/exits.py lists them; tests/startup compares the two.
readonly EXIT_DONE=0
readonly EXIT_USAGE=64
readonly EXIT_INTERRUPTED=75
readonly EXIT_FENCED=76
readonly MAX_NO_PROGRESS=10
readonly REASON_SETUP_FAILED=setup-failed
readonly REASON_FORBIDDEN=forbidden

# curl's exit status for an HTTP error; metadata::get returns it for an absent key.
readonly STATUS_ABSENT=22

readonly ROOT="${OUTLAST_ROOT:-}"
readonly STATE_DIR="$ROOT/var/lib/outlast"
readonly RUN_DIR="$ROOT/run/outlast"
readonly LOG_DIR="$ROOT/var/log/outlast"
readonly LOG_FILE="$LOG_DIR/boot.log"
# When the silence of storage or of the metadata server began that this disk's boots still meet, in
# tenths of a second; absent after an answer of storage.
readonly SILENT_FILE="$STATE_DIR/silent-since"
readonly SERIAL_PORT="$ROOT/dev/ttyS0"

# Touched at each progress of this VM; exists only with health checks.
readonly SIGN_FILE="$RUN_DIR/sign"

readonly METADATA_URL="${METADATA_BASE:-http://metadata.google.internal/computeMetadata/v1}"
readonly STORAGE_URL="${STORAGE_EMULATOR_HOST:-https://storage.googleapis.com}"
readonly COMPUTE_URL="${OUTLAST_COMPUTE_ENDPOINT:-https://compute.googleapis.com/compute/v1/}"

# Without ~/.curlrc, and with a timeout so that a boot does not hang.
readonly CURL=(curl -q --silent --connect-timeout 5)

# Values from metadata::load by path below instance/, such as `id` or `attributes/outlast-run`.
declare -gA METADATA=()

# HTTP status of the last http::call: three digits, 000 without an answer.
HTTP_STATUS=000

# The call that the bucket still refuses after the `iam_propagation` wait, or has not answered for
# `silence`; set by http::persist.
GIVEN_UP=""

# The reason that every VM of this template would fail; empty if another one may succeed. Set by
# step::never; the builder of an image, which has no successor, does not read it.
HOPELESS=""

# The last error that was logged; the boot's end record contains it.
LAST_ERROR=""

# File with the current step's output; empty if it has none.
STEP_LOG=""

readonly METADATA_TRIES=14
readonly FETCH_SEC=3600
readonly LAST_LINES=20

# Tenths of a second; settings, read by timeouts::read.
IAM_PROPAGATION=6000
SILENCE=9000
BACKOFF=100

# Ends of the waits for calls that are not permitted yet, and for calls without an answer, as times of
# time::tenths.
IAM_UNTIL=0
SILENT_UNTIL=0

# Set once a boot has failed: its last calls have a short budget, which http::call does not extend.
LAST_WORDS=""

# Seconds that one call may take.
CALL_SEC=120

# ---- time ---------------------------------------------------------------------------------------

# Prints the time, RFC 3339 in UTC.
time::now() {
  TZ=UTC printf '%(%Y-%m-%dT%H:%M:%SZ)T' -1
}

# Prints the tenths of a second since 1970; whole seconds are too coarse for short waits.
time::tenths() {
  local micros="${EPOCHREALTIME/[.,]/}"
  printf '%d' "$((micros / 100000))"
}

# Sleeps TENTHS tenths of a second.
time::sleep_tenths() {
  sleep "$(($1 / 10)).$(($1 % 10))"
}

# ---- log ----------------------------------------------------------------------------------------

# log::write LEVEL STEP MESSAGE...: writes a line to stderr, the serial port and the log file, and
# touches the sign of progress. A failed write never fails the boot.
log::write() {
  local level="$1" step="$2"
  shift 2
  local line
  TZ=UTC printf -v line '%(%Y-%m-%dT%H:%M:%SZ)T %s %s %s' -1 "$level" "$step" "$*"
  if [[ $level == error ]]; then
    LAST_ERROR="$*"
  fi
  printf '%s\n' "$line" >&2
  if [[ -w $SERIAL_PORT && ! $SERIAL_PORT -ef /dev/stderr ]]; then
    printf '%s\n' "$line" >>"$SERIAL_PORT" || true
  fi
  if [[ -d $LOG_DIR ]]; then
    printf '%s\n' "$line" >>"$LOG_FILE" || true
  fi
  if [[ -e $SIGN_FILE ]]; then
    : >"$SIGN_FILE" || true
  fi
}

log::info() {
  log::write info "$@"
}

log::warn() {
  log::write warn "$@"
}

log::error() {
  log::write error "$@"
}

# step::run NAME COMMAND...: runs a command, logs its start and its end with the status, and returns
# the status. CURRENT_STEP names the step for reports of a failure.
CURRENT_STEP=start
step::run() {
  CURRENT_STEP="$1"
  shift
  local rc=0
  log::info "$CURRENT_STEP" "start"
  "$@" || rc=$?
  log::info "$CURRENT_STEP" "end rc=$rc"
  return "$rc"
}

# step::never MESSAGE...: logs the error of a step that would fail on every VM of this template.
step::never() {
  log::error "$CURRENT_STEP" "$@"
  HOPELESS="$LAST_ERROR"
}

# retry::run TRIES COMMAND...: repeats a command until it succeeds, with growing waits; returns the last
# status.
retry::run() {
  local tries="$1"
  shift
  local n=1 rc delay
  delay="$(retry::first_delay)"
  while :; do
    rc=0
    "$@" || rc=$?
    if ((rc == 0 || n >= tries)); then
      return "$rc"
    fi
    n=$((n + 1))
    time::sleep_tenths "$delay"
    delay="$(retry::next_delay "$delay")"
  done
}

# silence::begin: sets SILENT_UNTIL. A silence that an earlier boot of this disk met counts from its
# begin.
silence::begin() {
  local now since=""
  now="$(time::tenths)"
  if [[ -s $SILENT_FILE ]]; then
    since="$(<"$SILENT_FILE")"
  fi
  if [[ ! $since =~ ^[0-9]{1,15}$ ]] || ((since > now)); then
    since="$now"
  fi
  SILENT_UNTIL=$((since + SILENCE))
}

# silence::note: notes when a silence has begun.
silence::note() {
  if [[ -z $LAST_WORDS && ! -e $SILENT_FILE && -d $STATE_DIR ]]; then
    time::tenths >"$SILENT_FILE" || true
  fi
}

silence::over() {
  rm -f "$SILENT_FILE"
  SILENT_UNTIL=$(($(time::tenths) + SILENCE))
}

# retry::until_answered COMMAND...: repeats a command until it succeeds or returns STATUS_ABSENT, at most
# until SILENT_UNTIL; returns the last status.
retry::until_answered() {
  local rc delay
  delay="$(retry::first_delay)"
  while :; do
    rc=0
    "$@" || rc=$?
    if ((rc == 0 || rc == STATUS_ABSENT)); then
      return "$rc"
    fi
    silence::note
    if (($(time::tenths) >= SILENT_UNTIL)); then
      return "$rc"
    fi
    time::sleep_tenths "$delay"
    delay="$(retry::next_delay "$delay")"
  done
}

# Delays in tenths of a second: short at first, because usually the network is still starting, and at
# most the `backoff` setting.
retry::first_delay() {
  local delay=2
  printf '%d' "$((delay > BACKOFF ? (BACKOFF > 0 ? BACKOFF : 1) : delay))"
}

retry::next_delay() {
  local delay="$(($1 * 2))"
  printf '%d' "$((delay > BACKOFF ? (BACKOFF > 0 ? BACKOFF : 1) : delay))"
}

# ---- JSON ---------------------------------------------------------------------------------------

# json::quote TEXT: prints TEXT as a JSON string. Drops bytes other than ASCII text, newlines and tabs,
# so that half a character at a cut cannot make the record unreadable.
json::quote() {
  local LC_ALL=C text="$1"
  text="${text//[^$'\t'$'\n' -~]/}"
  text="${text//\\/\\\\}"
  text="${text//\"/\\\"}"
  text="${text//$'\n'/\\n}"
  text="${text//$'\t'/\\t}"
  printf '"%s"' "$text"
}

# json::object KEY=TEXT KEY:=NUMBER...: prints an object with these keys in order, without spaces.
json::object() {
  local pair text="" separator=""
  for pair in "$@"; do
    text+="$separator\"${pair%%[:=]*}\":"
    if [[ $pair =~ ^[a-z0-9_]+:= ]]; then
      text+="${pair#*:=}"
    else
      text+="$(json::quote "${pair#*=}")"
    fi
    separator=,
  done
  printf '{%s}\n' "$text"
}

# json::flatten <JSON: prints one line per leaf, `path<tab>value`, such as `items.0.name<tab>x`.
# Strings lose their quotes, and keep escapes other than \" \/ and \\.
json::flatten() {
  LC_ALL=C grep -oE '"([^"\\]|\\.)*"|-?[0-9][-+.0-9eE]*|true|false|null|[][{}:,]' |
    LC_ALL=C awk '
      function path(  i, text) {
        for (i = 1; i <= depth; i++) text = text (i > 1 ? "." : "") name[i]
        return text
      }
      function unquoted(text) {
        if (text !~ /^"/) return text
        text = substr(text, 2, length(text) - 2)
        gsub(/\\\//, "/", text)
        gsub(/\\"/, "\"", text)
        gsub(/\\\\/, "\\", text)
        return text
      }
      $0 == "{" { kind[++depth] = "object"; name[depth] = ""; wants_key = 1; next }
      $0 == "[" { kind[++depth] = "array"; name[depth] = 0; wants_key = 0; next }
      $0 == "}" || $0 == "]" { depth--; wants_key = 0; next }
      $0 == ":" { wants_key = 0; next }
      $0 == "," {
        if (kind[depth] == "array") name[depth]++
        else wants_key = 1
        next
      }
      wants_key { name[depth] = unquoted($0); next }
      { printf "%s\t%s\n", path(), unquoted($0) }
    '
}

# ---- metadata -----------------------------------------------------------------------------------

# metadata::get PATH: prints only the value at PATH below computeMetadata/v1/. Returns 22 for an absent
# key, 1 if the server gave no usable answer.
metadata::get() {
  local answer status rc=0
  answer="$("${CURL[@]}" --noproxy '*' --max-time 10 --header 'Metadata-Flavor: Google' \
    --write-out '\n%{http_code}' "$METADATA_URL/$1")" || rc=$?
  status="${answer##*$'\n'}"
  if ((rc == 0)) && [[ $status == 200 ]]; then
    printf '%s' "${answer%$'\n'*}"
  elif [[ $status == 404 ]]; then
    return "$STATUS_ABSENT"
  else
    return 1
  fi
}

# metadata::load PATH...: reads paths below instance/ into METADATA over one connection, without absent
# ones. Returns 1 after any other answer. A path is [-a-z/]+.
metadata::load() {
  local folder path line status rc=0
  local argv=() paths=("$@")
  folder="$(mktemp -d "$RUN_DIR/metadata.XXXXXX")" || return 1
  local n=0
  for path in "${paths[@]}"; do
    argv+=(--output "$folder/$n" "$METADATA_URL/instance/$path")
    n=$((n + 1))
  done
  n=0
  while IFS= read -r line; do
    status="${line%% *}"
    path="${paths[n]}"
    if [[ $status == 200 ]]; then
      METADATA["$path"]=""
      if [[ -s $folder/$n ]]; then
        METADATA["$path"]="$(<"$folder/$n")"
      fi
    elif [[ $status != 404 ]]; then
      log::warn metadata "$path: status $status from $METADATA_URL"
      rc=1
    fi
    n=$((n + 1))
  done < <("${CURL[@]}" --noproxy '*' --max-time 10 --fail --header 'Metadata-Flavor: Google' \
    --write-out '%{http_code} \n' "${argv[@]}" || true)
  rm -rf "$folder"
  if ((n < ${#paths[@]})); then
    log::warn metadata "$n of ${#paths[@]} answers from $METADATA_URL"
    rc=1
  fi
  return "$rc"
}

# metadata::require PATH...: logs an error for the first path that metadata::load did not find, and
# returns 22.
metadata::require() {
  local path
  for path in "$@"; do
    if [[ -z ${METADATA["$path"]:-} ]]; then
      log::error "$CURRENT_STEP" "metadata key ${path#attributes/}: missing; the instance" \
        "template must carry it"
      return "$STATUS_ABSENT"
    fi
  done
}

# metadata::token: prints an access token of the VM's service account.
metadata::token() {
  local answer
  answer="$(metadata::get instance/service-accounts/default/token)" || return
  [[ $answer =~ \"access_token\"[[:space:]]*:[[:space:]]*\"([^\"]+)\" ]] || return 1
  printf '%s' "${BASH_REMATCH[1]}"
}

# timeouts::read JSON: reads `iam_propagation`, `silence` and `backoff` from the object in
# outlast-timeouts; a missing key keeps its default. The waits have begun with this script.
timeouts::read() {
  IAM_PROPAGATION="$(timeouts::tenths iam_propagation "$1" "$IAM_PROPAGATION")"
  SILENCE="$(timeouts::tenths silence "$1" "$SILENCE")"
  BACKOFF="$(timeouts::tenths backoff "$1" "$BACKOFF")"
  IAM_UNTIL=$(($(time::tenths) - SECONDS * 10 + IAM_PROPAGATION))
  silence::begin
}

# timeouts::tenths KEY JSON DEFAULT
timeouts::tenths() {
  if [[ $2 =~ \"$1\"[[:space:]]*:[[:space:]]*([0-9]+)(\.([0-9]))? ]]; then
    printf '%d' "$((10#${BASH_REMATCH[1]} * 10 + ${BASH_REMATCH[3]:-0}))"
  else
    printf '%d' "$3"
  fi
}

# ---- HTTP ---------------------------------------------------------------------------------------

# url::quote TEXT: prints TEXT percent-encoded, including slashes.
url::quote() {
  local LC_ALL=C text="$1" quoted="" c i
  for ((i = 0; i < ${#text}; i++)); do
    c="${text:i:1}"
    case "$c" in
    [-_.~a-zA-Z0-9]) quoted+="$c" ;;
    *)
      printf -v c '%%%02X' "'$c"
      quoted+="$c"
      ;;
    esac
  done
  printf '%s' "$quoted"
}

# http::authorise: gets a token and keeps the header in a file that only root can read, because every
# user can read a command line.
http::authorise() {
  local token
  token="$(metadata::token)" || return
  (umask 077 && printf 'Authorization: Bearer %s\n' "$token" >"$RUN_DIR/authorization.tmp") &&
    mv -f "$RUN_DIR/authorization.tmp" "$RUN_DIR/authorization"
}

# http::call URL BODY [CURL ARGUMENTS...]: sends a call, writes the answer to the file BODY and sets
# HTTP_STATUS. A final answer ends a silence. Returns 0 for 2xx.
http::call() {
  local url="$1" body="$2"
  shift 2
  HTTP_STATUS=000
  if [[ ! -e $RUN_DIR/authorization ]] && ! http::authorise; then
    silence::note
    return 1
  fi
  : >"$body"
  # curl prints the status from the headers even if the body was cut; that is not an answer.
  HTTP_STATUS="$("${CURL[@]}" --max-time "$CALL_SEC" --header "@$RUN_DIR/authorization" \
    --output "$body" --write-out '%{http_code}' "$@" "$url")" || HTTP_STATUS=000
  if [[ $HTTP_STATUS == 401 ]]; then
    rm -f "$RUN_DIR/authorization"
  fi
  if http::is_undecided; then
    silence::note
  elif [[ -z $LAST_WORDS ]]; then
    silence::over
  fi
  [[ $HTTP_STATUS == 2?? ]]
}

# http::is_undecided: whether the last answer is not final: 408, 429, 5xx, or no answer.
http::is_undecided() {
  [[ $HTTP_STATUS =~ ^(000|408|429|5..)$ ]]
}

# http::persist WHAT COMMAND...: repeats a command while its answer may still change: until
# SILENT_UNTIL if there is none, and until IAM_UNTIL for 401, 403 and 404, which new permissions that
# are still spreading may cause. Returns the last status.
http::persist() {
  local what="$1"
  shift
  local rc delay left
  delay="$(retry::first_delay)"
  while :; do
    rc=0
    "$@" || rc=$?
    if ((rc == 0)); then
      return 0
    fi
    if ! http::is_undecided && [[ ! $HTTP_STATUS =~ ^40[134]$ ]]; then
      break
    fi
    left=$((SILENT_UNTIL - $(time::tenths)))
    if [[ $HTTP_STATUS =~ ^40[134]$ ]]; then
      left=$((IAM_UNTIL - $(time::tenths)))
    fi
    if ((left <= 0)); then
      break
    fi
    if [[ $HTTP_STATUS =~ ^40[134]$ ]]; then
      log::warn "$CURRENT_STEP" "$what: status $HTTP_STATUS; new permissions may still be" \
        "spreading, waiting $(((left + 9) / 10)) s more"
    else
      log::warn "$CURRENT_STEP" "$what: status $HTTP_STATUS; trying again"
    fi
    time::sleep_tenths "$delay"
    delay="$(retry::next_delay "$delay")"
  done
  if [[ $HTTP_STATUS =~ ^40[134]$ ]]; then
    GIVEN_UP="$what: status $HTTP_STATUS"
  elif http::is_undecided && [[ -z $LAST_WORDS ]]; then
    GIVEN_UP="$what: no answer for $((SILENCE / 10)) s, the last status $HTTP_STATUS"
  fi
  log::error "$CURRENT_STEP" "$what: status $HTTP_STATUS"
  return "$rc"
}

# ---- objects ------------------------------------------------------------------------------------

# gcs::create BUCKET NAME FILE: writes a new object. An existing one is left unchanged and is not an
# error: only a repeated write has the same name.
gcs::create() {
  http::call "$STORAGE_URL/upload/storage/v1/b/$1/o?uploadType=media&ifGenerationMatch=0&name=$(
    url::quote "$2"
  )" "$RUN_DIR/answer" --request POST --header 'Content-Type: application/json' \
    --data-binary "@$3" || [[ $HTTP_STATUS == 412 ]]
}

# gcs::get BUCKET NAME FILE [PAYER]: writes an object's bytes to FILE, at the expense of project PAYER.
# Its time is limited only while nothing arrives, because an object may be large.
gcs::get() {
  gcs::read "$1" "$2" "?alt=media${4:+&userProject=$4}" "$3" --max-time "$FETCH_SEC" \
    --speed-limit 1 --speed-time 60
}

# gcs::stat BUCKET NAME FILE: writes an object's description to FILE, as JSON.
gcs::stat() {
  gcs::read "$1" "$2" '' "$3"
}

# gcs::read BUCKET NAME QUERY FILE [CURL ARGUMENTS...]: reads an object. HTTP_STATUS is 404 if it is
# absent, also where Cloud Storage answers 403: outlast/bucket/store/gcs.py says when.
gcs::read() {
  local bucket="$1" name="$2"
  if http::call "$STORAGE_URL/storage/v1/b/$bucket/o/$(url::quote "$name")$3" "$4" "${@:5}"; then
    return 0
  fi
  if [[ $HTTP_STATUS == 403 ]]; then
    if gcs::is_absent "$bucket" "$name"; then
      HTTP_STATUS=404
    else
      HTTP_STATUS=403
    fi
  fi
  return 1
}

# gcs::is_absent BUCKET NAME: whether a list is allowed and lacks the object. The exact name is the
# first with that prefix, because names are listed in order.
gcs::is_absent() {
  http::call "$STORAGE_URL/storage/v1/b/$1/o?maxResults=1&prefix=$(url::quote "$2")" \
    "$RUN_DIR/answer" || return
  ! json::flatten <"$RUN_DIR/answer" | grep -qxF "items.0.name"$'\t'"$2"
}

# gcs::list BUCKET PREFIX FILE: writes to FILE one line per object, `name<tab>time created`, and one
# line per folder below, its path with a slash at the end. Reads all pages.
gcs::list() {
  local bucket="$1" url page="" flat
  url="$STORAGE_URL/storage/v1/b/$bucket/o?delimiter=%2F&prefix=$(url::quote "$2")"
  : >"$3"
  while :; do
    http::call "$url${page:+&pageToken=$(url::quote "$page")}" "$RUN_DIR/answer" || return
    flat="$(json::flatten <"$RUN_DIR/answer")"
    awk -F '\t' '
      $1 ~ /^prefixes\.[0-9]+$/ { print $2; next }
      split($1, part, ".") == 3 && part[1] == "items" {
        if (part[3] == "name") name[part[2]] = $2
        if (part[3] == "timeCreated") created[part[2]] = $2
      }
      END { for (i in name) print name[i] "\t" created[i] }
    ' <<<"$flat" >>"$3"
    page="$(awk -F '\t' '$1 == "nextPageToken" { print $2 }' <<<"$flat")"
    if [[ -z $page ]]; then
      return 0
    fi
  done
}
