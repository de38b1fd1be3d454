#!/bin/bash
#
# Shared by the startup scripts: log lines, metadata, HTTP with the VM's own token, objects of the
# bucket, JSON. Sourced first; sets no shell options and does nothing by itself.
#
# Environment (all optional, empty on Compute Engine):
#   OUTLAST_ROOT              prefix of every absolute path
#   METADATA_BASE             metadata server, up to and with /computeMetadata/v1
#   STORAGE_EMULATOR_HOST     storage endpoint without a path
#   OUTLAST_COMPUTE_ENDPOINT  Compute API up to and with /compute/v1/
# Needs bash 5, curl 7.76 and the usual awk, grep, date, sleep, tail.

# This file is read by its neighbours:
# shellcheck disable=SC2034

# outlast/base/exits.py has the list; tests/startup compares the two.
readonly EXIT_DONE=0
readonly EXIT_USAGE=64
readonly EXIT_INTERRUPTED=75
readonly EXIT_FENCED=76
readonly MAX_NO_PROGRESS=10
readonly REASON_SETUP_FAILED=setup-failed
readonly REASON_FORBIDDEN=forbidden

# The status curl gives for an HTTP error; metadata::get returns it for an absent key.
readonly STATUS_ABSENT=22

readonly ROOT="${OUTLAST_ROOT:-}"
readonly STATE_DIR="$ROOT/var/lib/outlast"
readonly RUN_DIR="$ROOT/run/outlast"
readonly LOG_DIR="$ROOT/var/log/outlast"
readonly LOG_FILE="$LOG_DIR/boot.log"
readonly SERIAL_PORT="$ROOT/dev/ttyS0"

# Its age is the time since this VM's last progress; exists only with health checks.
readonly SIGN_FILE="$RUN_DIR/sign"

readonly METADATA_URL="${METADATA_BASE:-http://metadata.google.internal/computeMetadata/v1}"
readonly STORAGE_URL="${STORAGE_EMULATOR_HOST:-https://storage.googleapis.com}"
readonly COMPUTE_URL="${OUTLAST_COMPUTE_ENDPOINT:-https://compute.googleapis.com/compute/v1/}"

# curl reads no ~/.curlrc, and gives up rather than hang a boot.
readonly CURL=(curl -q --silent --connect-timeout 5)

# Values of metadata::load: by path below instance/, so `id` or `attributes/outlast-run`.
declare -gA METADATA=()

# Status of the last http::call: three digits, 000 without an answer.
HTTP_STATUS=000

# What the bucket still refuses after the boot's whole `iam_propagation` wait; set by http::persist.
REFUSED=""

# The last error that was logged; the boot's end record contains it.
LAST_ERROR=""

# The file with the current step's output; empty if it has none.
STEP_LOG=""

readonly METADATA_TRIES=14
readonly LAST_LINES=20

# Tenths of a second; settings, read by timeouts::read.
IAM_PROPAGATION=6000
BACKOFF=100

# When the boot's own budget for calls that are not allowed yet ends, as time::tenths counts.
IAM_UNTIL=0

# ---- time ---------------------------------------------------------------------------------------

# Prints the time, RFC 3339 in UTC.
time::now() {
  TZ=UTC printf '%(%Y-%m-%dT%H:%M:%SZ)T' -1
}

# Prints the tenths of a second since 1970; a log line's clock is too coarse for short waits.
time::tenths() {
  local micros="${EPOCHREALTIME/[.,]/}"
  printf '%d' "$((micros / 100000))"
}

# Sleeps TENTHS tenths of a second.
time::sleep_tenths() {
  sleep "$(($1 / 10)).$(($1 % 10))"
}

# ---- log ----------------------------------------------------------------------------------------

# log::write LEVEL STEP MESSAGE...: one line to stderr, the serial port and the log file, and a sign
# of life. A failed write never fails the boot.
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

# step::run NAME COMMAND...: the command between a line at its start and one at its end with its
# status, which it returns. CURRENT_STEP names the step for reports of a failure.
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

# retry::run TRIES COMMAND...: until it succeeds, with growing waits; returns the last status.
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

# Delays in tenths: short at first, because a network that comes up is the usual reason, at most
# the `backoff` setting.
retry::first_delay() {
  local delay=2
  printf '%d' "$((delay > BACKOFF ? (BACKOFF > 0 ? BACKOFF : 1) : delay))"
}

retry::next_delay() {
  local delay="$(($1 * 2))"
  printf '%d' "$((delay > BACKOFF ? (BACKOFF > 0 ? BACKOFF : 1) : delay))"
}

# ---- JSON ---------------------------------------------------------------------------------------

# json::quote TEXT: TEXT as a JSON string; bytes that are neither ASCII text nor newline or tab
# are left out, so that half a character at a cut never makes the record unreadable.
json::quote() {
  local LC_ALL=C text="$1"
  text="${text//[^$'\t'$'\n' -~]/}"
  text="${text//\\/\\\\}"
  text="${text//\"/\\\"}"
  text="${text//$'\n'/\\n}"
  text="${text//$'\t'/\\t}"
  printf '"%s"' "$text"
}

# json::object KEY=TEXT KEY:=NUMBER...: one object, in the order given, without spaces.
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

# json::flatten <JSON: one line a leaf, `path<tab>value`, as in `items.0.name<tab>x`. Strings lose
# their quotes and keep escapes other than \" \/ and \\.
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

# metadata::get PATH: prints the value at PATH below computeMetadata/v1/ and nothing else. Returns
# 22 for an absent key, 1 when the server gave no usable answer.
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

# metadata::load PATH...: reads paths below instance/ into METADATA over one connection; absent
# ones are left out. Returns 1 when any other answer came. A path is [-a-z/]+.
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

# metadata::require PATH...: 22 and a sentence for the first that metadata::load did not find.
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

# timeouts::read JSON: takes `iam_propagation` and `backoff` from the object in outlast-timeouts; a
# key that it lacks keeps its default.
timeouts::read() {
  IAM_PROPAGATION="$(timeouts::tenths iam_propagation "$1" "$IAM_PROPAGATION")"
  BACKOFF="$(timeouts::tenths backoff "$1" "$BACKOFF")"
  IAM_UNTIL=$(($(time::tenths) + IAM_PROPAGATION))
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

# url::quote TEXT: percent-encoded, slashes too.
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

# http::authorise: asks for a token and keeps the header in a file that only root can read, since a
# command line can be read by all.
http::authorise() {
  local token
  token="$(metadata::token)" || return
  (umask 077 && printf 'Authorization: Bearer %s\n' "$token" >"$RUN_DIR/authorization.tmp") &&
    mv -f "$RUN_DIR/authorization.tmp" "$RUN_DIR/authorization"
}

# http::call URL BODY [CURL ARGUMENTS...]: one call, its answer in the file BODY, HTTP_STATUS set.
# Returns 0 for 2xx.
http::call() {
  local url="$1" body="$2"
  shift 2
  HTTP_STATUS=000
  if [[ ! -e $RUN_DIR/authorization ]] && ! http::authorise; then
    return 1
  fi
  : >"$body"
  # curl prints 200 as soon as the headers are there: a body that was cut is not an answer.
  HTTP_STATUS="$("${CURL[@]}" --max-time 120 --header "@$RUN_DIR/authorization" \
    --output "$body" --write-out '%{http_code}' "$@" "$url")" || HTTP_STATUS=000
  if [[ $HTTP_STATUS == 401 ]]; then
    rm -f "$RUN_DIR/authorization"
  fi
  [[ $HTTP_STATUS == 2?? ]]
}

# http::is_undecided: the last answer says nothing final. 408, 429, 5xx and no answer never do.
http::is_undecided() {
  [[ $HTTP_STATUS =~ ^(000|408|429|5..)$ ]]
}

# http::persist WHAT COMMAND...: the command again while its answer may still change: also 401, 403
# and 404, which IAM that is still spreading gives on the first calls; all within the boot's `iam`
# budget. Returns the last status.
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
    left=$((IAM_UNTIL - $(time::tenths)))
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
    REFUSED="$what: status $HTTP_STATUS"
  fi
  log::error "$CURRENT_STEP" "$what: status $HTTP_STATUS"
  return "$rc"
}

# ---- objects ------------------------------------------------------------------------------------

# gcs::create BUCKET NAME FILE: writes an object that must not exist; one that does is left alone
# and no error, since the names written here belong to this one boot.
gcs::create() {
  http::call "$STORAGE_URL/upload/storage/v1/b/$1/o?uploadType=media&ifGenerationMatch=0&name=$(
    url::quote "$2"
  )" "$RUN_DIR/answer" --request POST --header 'Content-Type: application/json' \
    --data-binary "@$3" || [[ $HTTP_STATUS == 412 ]]
}

# gcs::get BUCKET NAME FILE: an object's bytes.
gcs::get() {
  http::call "$STORAGE_URL/storage/v1/b/$1/o/$(url::quote "$2")?alt=media" "$3"
}

# gcs::stat BUCKET NAME FILE: an object's description, as JSON.
gcs::stat() {
  http::call "$STORAGE_URL/storage/v1/b/$1/o/$(url::quote "$2")" "$3"
}

# gcs::list BUCKET PREFIX FILE: into FILE one line an object, `name<tab>time created`, and with
# delimiter / one line a folder below, its path with a slash at the end. All pages.
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
