# Shared by the bats files: a VM's root folder, the cloud it talks to, and commands that stand in
# for the machine's own.
#
# $PYTHON runs the stand-ins; the pytest wrapper gives the project's interpreter.
# shellcheck shell=bash disable=SC2034

bats_require_minimum_version 1.5.0

REPO="$(cd "$BATS_TEST_DIRNAME/../.." && pwd)"
PYTHON="${PYTHON:-$(command -v python3)}"
PREFIX=experiments/digits/run1
BOOT_ID=5f097946-63af-4e08-8903-ecb4686e5fc0
RECORD="$PREFIX/boots/4711-$BOOT_ID"

setup_file() {
  cloud::start
}

teardown_file() {
  cloud::stop
}

cloud::start() {
  export CLOUD="$BATS_FILE_TMPDIR/cloud"
  mkdir -p "$CLOUD"
  # Without fd 3 bats would wait for the server.
  "$PYTHON" -I "$BATS_TEST_DIRNAME/cloud.py" "$CLOUD" "$BATS_FILE_TMPDIR/port" 3>&- &
  CLOUD_PID=$!
  export CLOUD_PID
  wait_until test -e "$BATS_FILE_TMPDIR/port"
  # The scripts as the metadata has them.
  PYTHONPATH="$REPO" "$PYTHON" -c '
import sys
from pathlib import Path
from outlast.spec import startup_script
for name in ("boot.sh", "bake.sh"):
    Path(sys.argv[1], name).write_text(startup_script.read(name))' "$BATS_FILE_TMPDIR"
  (cd "$BATS_TEST_DIRNAME/bundle" && "$PYTHON" -I -m zipfile -c "$BATS_FILE_TMPDIR/bundle.zip" \
    outlast requirements)
}

cloud::stop() {
  kill "$CLOUD_PID"
  wait "$CLOUD_PID" || true
}

# wait_until COMMAND...: for ten seconds at most.
wait_until() {
  local n=0
  until "$@"; do
    n=$((n + 1))
    ((n < 200)) || return 1
    sleep 0.05
  done
}

# vm::make: an empty cloud and a VM that boots for the first time, with an interpreter baked in.
vm::make() {
  local base
  base="http://127.0.0.1:$(<"$BATS_FILE_TMPDIR/port")"
  rm -rf "${CLOUD:?}"/*
  : >"$CLOUD/calls"
  mkdir -p "$CLOUD/objects" "$CLOUD/metadata/instance/attributes" "$CLOUD/metadata/project"
  export OUTLAST_ROOT="$BATS_TEST_TMPDIR/root"
  export METADATA_BASE="$base/computeMetadata/v1" STORAGE_EMULATOR_HOST="$base"
  export OUTLAST_COMPUTE_ENDPOINT="$base/compute/v1/"
  export HOME="$OUTLAST_ROOT/root" TMPDIR="$OUTLAST_ROOT/tmp" PYTHONDONTWRITEBYTECODE=1
  mkdir -p "$OUTLAST_ROOT"/{dev,root,run,tmp,bin,opt/outlast/venv/bin,proc/sys/kernel/random}
  export PATH="$OUTLAST_ROOT/bin:/usr/local/bin:/usr/bin:/bin"
  : >"$OUTLAST_ROOT/dev/ttyS0"
  printf '%s\n' "$BOOT_ID" >"$OUTLAST_ROOT/proc/sys/kernel/random/boot_id"
  # Not a link: an interpreter looks beside its own name for the environment it belongs to.
  command_in "$OUTLAST_ROOT/opt/outlast/venv/bin/python" "exec '$PYTHON' \"\$@\""
  command_in "$OUTLAST_ROOT/bin/poweroff" "echo poweroff >>'$CLOUD/calls'"
  : >"$OUTLAST_ROOT/act.py"
  metadata id 4711
  metadata name digits-1
  metadata zone projects/12/zones/zone-a
  printf 'project' >"$CLOUD/metadata/project/project-id"
  metadata attributes/outlast-bucket bucket
  metadata attributes/outlast-prefix experiments/digits
  metadata attributes/outlast-run run1
  metadata attributes/outlast-resume 0
  metadata attributes/outlast-placement 0
  metadata attributes/outlast-timeouts '{"backoff":0,"heartbeat":10,"iam_propagation":1}'
  metadata attributes/outlast-bundle experiments/digits/bundles/bundle.zip
  metadata attributes/outlast-bundle-sha256 "$(sha256sum <"$BATS_FILE_TMPDIR/bundle.zip" | head -c 64)"
  metadata attributes/created-by projects/12/zones/zone-a/instanceGroupManagers/group
  cp "$BATS_FILE_TMPDIR/bundle.zip" "$CLOUD/objects/experiments%2Fdigits%2Fbundles%2Fbundle.zip"
}

# command_in FILE SCRIPT
command_in() {
  printf '#!/bin/bash\n%s\n' "$2" >"$1"
  chmod 755 "$1"
}

# metadata PATH VALUE
metadata() {
  printf '%s' "$2" >"$CLOUD/metadata/instance/$1"
}

# fault METHOD PATTERN STATUS TIMES
fault() {
  printf '%s\n' "$*" >>"$CLOUD/faults"
}

# object NAME [TIME]: its file; with TIME (as touch reads it) created now, empty.
object() {
  local file="$CLOUD/objects/${1//\//%2F}"
  if (($# == 2)); then
    touch -d "$2" "$file"
  fi
  printf '%s' "$file"
}

# earlier_boots COUNT TIME [RESUME]: records of other VMs that booted at that time.
earlier_boots() {
  local n file
  for ((n = 1; n <= $1; n++)); do
    file="$(object "$PREFIX/boots/$((1000 + n))-${3:-0}.json")"
    printf '{"format":1,"placement":0,"resume":%s,"time":"x"}\n' "${3:-0}" >"$file"
    touch -d "$2" "$file"
  done
}

# members ID...: what the group answers.
members() {
  local id text="" n=0
  for id in "$@"; do
    n=$((n + 1))
    text+="${text:+,}{\"currentAction\": \"NONE\", \"version\": {\"id\": \"9\"}, \"instance\":
      \"https:\/\/compute.googleapis.com/compute/v1/projects/project/zones/zone-a/instances/vm-$n\",
      \"id\": \"$id\"}"
  done
  printf '[%s]' "$text" >"$CLOUD/members.json"
}

# vm::boot: as the guest agent does it: a file of the metadata's bytes in its own folder. BOOT_EDIT, of
# sed, shortens a constant.
vm::boot() {
  local folder rc=0
  folder="$(mktemp -d "$TMPDIR/metadata-scripts-XXXXXX")"
  cp "$BATS_FILE_TMPDIR/boot.sh" "$folder/startup-script"
  if [[ -n ${BOOT_EDIT:-} ]]; then
    sed -i "$BOOT_EDIT" "$folder/startup-script"
  fi
  chmod 755 "$folder/startup-script"
  # bash starts its background jobs with SIGINT ignored; the guest agent does not.
  env --default-signal=INT /bin/bash -c "$folder/startup-script" || rc=$?
  rm -rf "$folder"
  return "$rc"
}

# calls PATTERN: how many calls match.
calls() {
  grep -cE "$1" "$CLOUD/calls" || true
}

# json FILE KEY: one value.
json() {
  "$PYTHON" -I -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$1" "$2"
}

# is_record CLASS FILE: outlast/layout.py reads the file as this record.
is_record() {
  PYTHONPATH="$REPO" "$PYTHON" -c '
import sys
from outlast.bucket import layout
print(getattr(layout, sys.argv[1]).from_json(open(sys.argv[2], "rb").read()))' "$1" "$2"
}

said() {
  grep -qE "$1" "$OUTLAST_ROOT/dev/ttyS0"
}
