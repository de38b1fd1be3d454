#!/usr/bin/env bats
# The boot up to the supervisor: what it writes, repeats, waits for and refuses.

load helper

setup() {
  vm::make
}

@test "a fresh boot writes its record first and starts the supervisor in the bundle" {
  run -0 vm::boot
  [[ "$(grep -v computeMetadata "$CLOUD/calls" | head -n 1)" == "POST /upload/"*"$BOOT_ID"* ]]
  run -0 is_record BootRecord "$(object "$RECORD.json")"
  [[ $output == *"instance_id='4711'"*"instance='digits-1', zone='zone-a', resume=0, placement=0"* ]]
  local bundle
  bundle="$(echo "$OUTLAST_ROOT"/var/lib/outlast/bundle/*)"
  [[ ${bundle##*/} =~ ^[0-9a-f]{64}$ ]]
  [[ "$(json "$OUTLAST_ROOT/seen.json" cwd)" == "$bundle" ]]
  [[ "$(json "$OUTLAST_ROOT/seen.json" bundle)" == "$bundle" ]]
  [[ "$(json "$OUTLAST_ROOT/seen.json" file)" == "$bundle/outlast/supervisor/__main__.py" ]]
  [[ "$(json "$OUTLAST_ROOT/seen.json" argv)" == "['vm']" ]]
  [[ "$(json "$OUTLAST_ROOT/seen.json" safe_path)" == True ]]
  [[ "$(json "$OUTLAST_ROOT/seen.json" bytecode)" == True ]]
  [[ "$(json "$OUTLAST_ROOT/seen.json" lock_is_closed)" == True ]]
  [[ "$(tail -n 1 "$CLOUD/calls")" == poweroff ]]
  [[ ! -e "$(object "$RECORD.end.json")" ]]
}

@test "the ready file lasts as long as the supervisor" {
  cat >"$OUTLAST_ROOT/act.py" <<'PYTHON'
import os
from pathlib import Path

ready = Path(os.environ["OUTLAST_ROOT"]) / "run/outlast/ready"
while not ready.exists():
    pass
assert ready.read_text() == f"{os.getpid()}\n"
PYTHON
  run -0 vm::boot
  [[ ! -e "$OUTLAST_ROOT/run/outlast/ready" ]]
}

@test "a second boot of the same disk downloads nothing again" {
  run -0 vm::boot
  echo 11111111-2222-4333-8444-555555555555 >"$OUTLAST_ROOT/proc/sys/kernel/random/boot_id"
  run -0 vm::boot
  [[ "$(calls 'bundle.zip')" == 1 ]]
  [[ -e "$(object "$PREFIX/boots/4711-11111111-2222-4333-8444-555555555555.json")" ]]
}

@test "the same boot once more finds its record and continues" {
  run -0 vm::boot
  run -0 vm::boot
  [[ "$(calls 'POST /upload.* 412')" == 1 ]]
  [[ "$(calls '^poweroff')" == 2 ]]
}

@test "a download that was cut leaves nothing that the next boot could take for a bundle" {
  mkdir -p "$OUTLAST_ROOT/var/lib/outlast/bundle/tmp-cut/bundle/outlast"
  run -0 vm::boot
  [[ "$(ls "$OUTLAST_ROOT/var/lib/outlast/bundle")" =~ ^[0-9a-f]{64}$ ]]
}

@test "a second startup script of the same boot steps aside" {
  mkdir -p "$OUTLAST_ROOT/run/outlast"
  exec 8>"$OUTLAST_ROOT/run/outlast/boot.lock"
  flock 8
  run -0 vm::boot
  exec 8>&-
  said 'another startup script is at work'
  [[ "$(calls '^poweroff|upload')" == 0 ]]
}

@test "a bundle with another sha256 ends the boot with both values" {
  echo damaged >"$(object experiments/digits/bundles/bundle.zip)"
  run -1 vm::boot
  [[ ! -e "$OUTLAST_ROOT/seen.json" ]]
  run -0 is_record BootEnd "$(object "$RECORD.end.json")"
  [[ $output == *"setup-failed"*"step='fetch-bundle', exit=1"* ]]
  [[ $output == *"sha256 is $(echo damaged | sha256sum | head -c 64), must be $(
    sha256sum <"$BATS_FILE_TMPDIR/bundle.zip" | head -c 64
  )"* ]]
  [[ "$(tail -n 1 "$CLOUD/calls")" == poweroff ]]
  said "sha256 is"
}

# into_image SHA256: the image holds the bundle under this name, the bucket none.
into_image() {
  mkdir -p "$OUTLAST_ROOT/opt/outlast/bundles"
  mv "$(object experiments/digits/bundles/bundle.zip)" "$OUTLAST_ROOT/opt/outlast/bundles/$1.zip"
  metadata attributes/outlast-delivery image
}

@test "a baked bundle is taken from the image, and the bucket not asked for it" {
  into_image "$(sha256sum <"$(object experiments/digits/bundles/bundle.zip)" | head -c 64)"
  run -0 vm::boot
  [[ -e "$OUTLAST_ROOT/seen.json" ]]
  [[ "$(calls 'bundle.zip')" == 0 ]]
}

@test "an image without the bundle ends the boot with a sentence" {
  into_image 0000
  run -1 vm::boot
  local end
  end="$(object "$RECORD.end.json")"
  is_record BootEnd "$end"
  [[ "$(json "$end" step)" == fetch-bundle ]]
  [[ "$(json "$end" message)" == *"is not in the image; bake one of this checkout"* ]]
  [[ "$(calls 'bundle.zip')" == 0 ]]
}

@test "a baked bundle with another sha256 ends the boot" {
  local wanted
  wanted="$(sha256sum <"$(object experiments/digits/bundles/bundle.zip)" | head -c 64)"
  into_image "$wanted"
  echo damaged >"$OUTLAST_ROOT/opt/outlast/bundles/$wanted.zip"
  run -1 vm::boot
  [[ "$(json "$(object "$RECORD.end.json")" message)" == *"must be $wanted"*"bake the image again"* ]]
}

@test "a bundle that is not a zip file is refused" {
  echo text >"$(object experiments/digits/bundles/bundle.zip)"
  metadata attributes/outlast-bundle-sha256 "$(echo text | sha256sum | head -c 64)"
  run -1 vm::boot
  [[ "$(json "$(object "$RECORD.end.json")" message)" == *"is not a zip file" ]]
}

@test "a missing metadata key is named on the serial port" {
  rm "$CLOUD/metadata/instance/attributes/outlast-run"
  run -22 vm::boot
  said 'metadata key outlast-run: missing'
  [[ "$(tail -n 1 "$CLOUD/calls")" == poweroff ]]
}

@test "a resume that is not a number is refused" {
  metadata attributes/outlast-resume one
  run -1 vm::boot
  said "metadata key outlast-resume is 'one': must be a whole number"
}

@test "times are in UTC wherever the machine is" {
  TZ=XXX05:30 run -0 vm::boot # five and a half hours behind
  said "^$(date -u +%Y-%m-%dT%H):..:..Z info supervisor"
}

@test "a metadata server that comes up late is waited for" {
  fault GET instance/zone 503 1
  run -0 vm::boot
  said 'zone: status 503'
  [[ -e "$OUTLAST_ROOT/seen.json" ]]
}

@test "permissions that still spread are waited for, aloud" {
  metadata attributes/outlast-timeouts '{"backoff":0,"iam_propagation":60}' # a busy machine takes seconds a call
  fault POST upload 403 2
  fault GET bundle.zip 404 1
  run -0 vm::boot
  said 'boot record .*: status 403; new permissions may still be spreading, waiting [0-9]+ s more'
  [[ "$(calls 'POST /upload.* 200')" == 1 ]]
  [[ -e "$OUTLAST_ROOT/seen.json" ]]
}

@test "a token that is refused is asked for again" {
  metadata attributes/outlast-timeouts '{"backoff":0,"iam_propagation":60}' # a busy machine takes seconds a call
  fault POST upload 401 1
  run -0 vm::boot
  [[ "$(calls 'default/token')" == 2 ]]
}

@test "an answer that never comes is asked for again" {
  fault GET bundle.zip 0 1
  run -0 vm::boot
  said 'bundle .*: status 000; trying again'
}

@test "permissions that never come end the boot after the iam wait" {
  metadata attributes/outlast-timeouts '{"backoff":0,"iam_propagation":0}'
  fault GET bundle.zip 403 -1
  run -1 vm::boot
  [[ "$(json "$(object "$RECORD.end.json")" reason)" == forbidden ]]
  [[ "$(json "$(object "$RECORD.end.json")" message)" == "bundle gs://bucket/"*": status 403" ]]
  [[ "$(tail -n 1 "$CLOUD/calls")" == poweroff ]]
}

@test "a bucket that cannot be written is said on the serial port only" {
  metadata attributes/outlast-timeouts '{"backoff":0,"iam_propagation":0}'
  fault POST upload 403 -1
  fault GET storage/v1 403 -1
  run -1 vm::boot
  said "error record-boot boot record gs://bucket/$RECORD.json: status 403"
  [[ "$(tail -n 1 "$CLOUD/calls")" == poweroff ]]
}

@test "the token is never on a command line nor readable by others" {
  command_in "$OUTLAST_ROOT/bin/curl" "printf '%s\n' \"\$*\" >>'$OUTLAST_ROOT/argv'
exec /usr/bin/curl \"\$@\""
  run -0 vm::boot
  run -1 grep token-of-the-vm "$OUTLAST_ROOT/argv"
  [[ "$(stat -c %a "$OUTLAST_ROOT/run/outlast/authorization")" == 600 ]]
}

@test "a missing tool is named" {
  mkdir "$OUTLAST_ROOT/few"
  local tool
  for tool in bash cat chmod cp date env mkdir mktemp mv rm sleep; do
    ln -s "$(command -v "$tool")" "$OUTLAST_ROOT/few/$tool"
  done
  PATH="$OUTLAST_ROOT/few:$OUTLAST_ROOT/bin" run -1 vm::boot
  said 'awk curl flock grep sha256sum tail: missing'
}

@test "with systemd the supervisor is a separate unit" {
  mkdir -p "$OUTLAST_ROOT/run/systemd/system"
  command_in "$OUTLAST_ROOT/bin/systemctl" "echo \"systemctl \$*\" >>'$CLOUD/calls'"
  run -0 vm::boot
  [[ "$(tail -n 2 "$CLOUD/calls")" == "systemctl daemon-reload
systemctl start --no-block outlast-supervisor.service" ]]
  [[ ! -e "$OUTLAST_ROOT/seen.json" ]]
  local unit="$OUTLAST_ROOT/run/systemd/system/outlast-supervisor.service" command
  grep -qx 'KillMode=mixed' "$unit"
  grep -qx 'KillSignal=SIGTERM' "$unit"
  grep -qx 'TimeoutStopSec=110' "$unit"
  grep -qx 'Restart=no' "$unit"
  command="$(sed -n 's/^ExecStart=//p' "$unit")"
  read -ra argv <<<"$command"
  run -0 "${argv[@]}"
  [[ -e "$OUTLAST_ROOT/seen.json" ]]
  [[ "$(tail -n 1 "$CLOUD/calls")" == poweroff ]]
}
