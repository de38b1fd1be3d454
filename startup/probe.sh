#!/bin/bash
#
# Answers what only a VM of a project can: what its identity may do in the bucket, and what the image
# has at its first boot. `outlast rehearse --on google` creates the VM and deletes it.
#
# Metadata (instance/attributes): outlast-probe-bucket, outlast-probe-prefix (the VM's own, which holds
#   an object `known`), outlast-probe-other (an object outside of it), outlast-probe-wait (seconds for
#   new permissions to work).
# Environment: lib.sh lists it.
#
# Each answer is a line `outlast-probe KEY=VALUE` on the serial port, and a guest attribute
# outlast-probe/KEY. The last one is `end=0`.

set -uo pipefail

# shellcheck source=startup/lib.sh
source "${BASH_SOURCE[0]%/*}/lib.sh"

# probe::answer KEY VALUE: standard output goes to the serial port, too. Who reads a line there may ask
# for the attribute at once, so the attribute comes first.
probe::answer() {
  printf '%s' "$2" | "${CURL[@]}" --noproxy '*' --max-time 10 --output /dev/null \
    --header 'Metadata-Flavor: Google' --request PUT --data-binary @- \
    "$METADATA_URL/instance/guest-attributes/outlast-probe/$1" || true
  printf 'outlast-probe %s=%s\n' "$1" "$2"
}

# probe::first_boot: what a boot of the supervisor needs of the image.
probe::first_boot() {
  local version=none venv=failed
  if command -v python3 >/dev/null; then
    version="$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')" || version=none
    if python3 -m venv --without-pip "$STATE_DIR/probe-venv" >&2; then
      venv=ok
    fi
  fi
  probe::answer python "$version"
  probe::answer venv "$venv"
  probe::answer preempted "$(metadata::get instance/preempted || echo none)"
}

# probe::status PATH: prints the status of a GET below the bucket.
probe::status() {
  http::call "$STORAGE_URL/storage/v1/b/$BUCKET/$1" "$RUN_DIR/answer"
  printf '%s' "$HTTP_STATUS"
}

# probe::object NAME: the path of an object below its bucket.
probe::object() {
  printf 'o/%s' "$(url::quote "$1")"
}

# probe::identity: what the VM may do once its permissions work.
probe::identity() {
  local began known
  began="$(time::tenths)"
  while :; do
    known="$(probe::status "$(probe::object "$PREFIX/known")")"
    if [[ $known == 200 || $(($(time::tenths) - began)) -gt $((WAIT_SEC * 10)) ]]; then
      break
    fi
    sleep 1
  done
  probe::answer known "$known"
  probe::answer granted-sec "$((($(time::tenths) - began) / 10))"
  probe::answer absent "$(probe::status "$(probe::object "$PREFIX/absent")")"
  probe::answer list "$(probe::status "o?prefix=$(url::quote "$PREFIX/")")"
  probe::answer list-all "$(probe::status o)"
  probe::answer other "$(probe::status "$(probe::object "$OTHER")")"
}

mkdir -p "$RUN_DIR" "$STATE_DIR" "$LOG_DIR"
BUCKET="$(metadata::get instance/attributes/outlast-probe-bucket)"
PREFIX="$(metadata::get instance/attributes/outlast-probe-prefix)"
OTHER="$(metadata::get instance/attributes/outlast-probe-other)"
WAIT_SEC="$(metadata::get instance/attributes/outlast-probe-wait)"
probe::first_boot
probe::identity
probe::answer end 0
