#!/usr/bin/env bats
# The tenth boot in a row without an attempt, and how it leaves the group.

load helper

# A boot that fails although another may succeed, of a VM in a group of two.
setup() {
  vm::make
  fault GET bundle.zip 400 -1
  members 99 4711
}

# heal: the bundle can be fetched.
heal() {
  rm -f "$CLOUD/faults"
}

# order: what was asked of the group and the machine, one word a call, in order.
order() {
  sed -nE 's#.*instanceGroupManagers/group/([a-zA-Z]+).* ([0-9]+)$#\1:\2#p; s/^poweroff$/&/p' \
    "$CLOUD/calls" | tr '\n' ' '
}

@test "nine boots in a row without an attempt only power off" {
  earlier_boots 8 '1 hour ago'
  run -1 vm::boot
  said 'boot 9 in a row'
  [[ "$(order)" == "poweroff " ]]
}

@test "the tenth leaves by its own URL, after its end is written, before it powers off" {
  earlier_boots 9 '1 hour ago'
  run -1 vm::boot
  [[ "$(order)" == "listManagedInstances:200 deleteInstances:200 poweroff " ]]
  [[ "$(<"$CLOUD/deleted")" == */zones/zone-a/instances/vm-2 ]]
  local written asked
  written="$(grep -n 'POST /upload.*end.json' "$CLOUD/calls" | head -n 1)"
  asked="$(grep -n deleteInstances "$CLOUD/calls")"
  ((${written%%:*} < ${asked%%:*}))
}

@test "a regional group is left as a zonal one is" {
  earlier_boots 9 '1 hour ago'
  metadata attributes/created-by projects/12/regions/region/instanceGroupManagers/group
  run -1 vm::boot
  [[ "$(order)" == "listManagedInstances:200 deleteInstances:200 poweroff " ]]
  [[ "$(calls 'POST /compute/v1/projects/project/regions/region/instanceGroupManagers/group/deleteInstances')" == 1 ]]
}

@test "boots before the newest attempt do not count, also where an absent object is 403" {
  echo 403 >"$CLOUD/absent"
  earlier_boots 9 '2 hours ago'
  object "$PREFIX/attempts/000009/start.json" '3 hours ago'
  object "$PREFIX/attempts/000010/start.json" '1 hour ago'
  object "$PREFIX/attempts/000011/heartbeat.json" '1 minute ago'
  run -1 vm::boot
  said 'boot 1 in a row'
  [[ "$(order)" == "poweroff " ]]
}

@test "boots after the newest attempt count, their ends do not count twice" {
  earlier_boots 9 '1 hour ago'
  object "$PREFIX/boots/1001-0.end.json" '1 hour ago'
  object "$PREFIX/attempts/000002/start.json" '2 hours ago'
  run -1 vm::boot
  said 'boot 10 in a row'
}

@test "boots of an earlier resume do not count" {
  earlier_boots 9 '1 hour ago'
  metadata attributes/outlast-resume 1
  run -1 vm::boot
  said 'boot 1 in a row'
}

@test "a VM that is not a member powers off and never calls by name" {
  earlier_boots 9 '1 hour ago'
  members 99 47110
  run -1 vm::boot
  [[ "$(order)" == "listManagedInstances:200 poweroff " ]]
  said 'not a member'
}

@test "a group that is gone was left already" {
  earlier_boots 9 '1 hour ago'
  rm "$CLOUD/members.json"
  run -1 vm::boot
  [[ "$(order)" == "listManagedInstances:404 poweroff " ]]
}

@test "a VM of no group powers off" {
  earlier_boots 9 '1 hour ago'
  rm "$CLOUD/metadata/instance/attributes/created-by"
  run -1 vm::boot
  [[ "$(order)" == "poweroff " ]]
}

@test "while membership is not known the VM neither powers off nor leaves" {
  earlier_boots 9 '1 hour ago'
  fault POST listManagedInstances 403 1
  fault POST listManagedInstances 503 1
  fault POST listManagedInstances 0 1
  fault POST listManagedInstances 429 1
  fault POST listManagedInstances 401 1
  run -1 vm::boot
  [[ "$(order)" == "listManagedInstances:403 listManagedInstances:503 listManagedInstances:0 listManagedInstances:429 listManagedInstances:401 listManagedInstances:200 deleteInstances:200 poweroff " ]]
}

@test "an answer that never came to deleteInstances: look again" {
  earlier_boots 9 '1 hour ago'
  fault POST deleteInstances 0 1
  run -1 vm::boot
  [[ "$(order)" == "listManagedInstances:200 deleteInstances:0 listManagedInstances:200 deleteInstances:200 poweroff " ]]
}

@test "refused, the VM stays up, asks for size 0 and says that it is stuck" {
  earlier_boots 9 '1 hour ago'
  fault POST deleteInstances 403 2
  fault POST resize 403 1
  run -1 vm::boot
  said 'stuck-leaving: deleteInstances .* refused with status 403'
  said 'stuck-leaving: resize .* status 403; this VM stays idle'
  [[ "$(order)" == "listManagedInstances:200 deleteInstances:403 resize:403 listManagedInstances:200 deleteInstances:403 resize:200 poweroff " ]]
}

@test "a supervisor that crashes ten times without an attempt leaves, too" {
  heal
  earlier_boots 9 '1 hour ago'
  echo 'raise SystemExit(1)' >"$OUTLAST_ROOT/act.py"
  run -1 vm::boot
  [[ "$(order)" == "listManagedInstances:200 deleteInstances:200 poweroff " ]]
}

@test "attempts that a storage in trouble does not list prove nothing: power off" {
  metadata attributes/outlast-timeouts '{"backoff":0,"iam_propagation":0}'
  earlier_boots 9 '1 hour ago'
  fault GET prefix= 503 -1
  run -1 vm::boot
  [[ "$(order)" == "poweroff " ]]
}

@test "boots that the bucket refuses to list cannot be counted: leave" {
  metadata attributes/outlast-timeouts '{"backoff":0,"iam_propagation":0}'
  fault GET prefix= 403 -1
  run -1 vm::boot
  said 'leaves its group, as the next one would fail too: attempts: status 403'
  [[ "$(order)" == "listManagedInstances:200 deleteInstances:200 poweroff " ]]
}

@test "a bucket that refuses every call, as one whose reader pays: leave" {
  fault GET storage/v1 400 -1
  fault POST upload 400 -1
  run -1 vm::boot
  said 'leaves its group, as the next one would fail too: earlier boots cannot be read: status 400'
  [[ "$(order)" == "listManagedInstances:200 deleteInstances:200 poweroff " ]]
}

@test "a bucket that is gone: the first boot leaves after its iam wait" {
  metadata attributes/outlast-timeouts '{"backoff":0,"iam_propagation":0}'
  fault GET storage/v1 404 -1
  fault POST upload 404 -1
  run -1 vm::boot
  said 'leaves its group, as the next one would fail too: boot record .*: status 404'
  [[ "$(order)" == "listManagedInstances:200 deleteInstances:200 poweroff " ]]
}

# For boots whose report of their end gets no answer either.
BRIEF='s/^readonly LAST_WORDS_TENTHS=300$/readonly LAST_WORDS_TENTHS=10/'

# silent SECONDS: how long this boot waits for an answer of the bucket.
silent() {
  metadata attributes/outlast-timeouts "{\"backoff\":0,\"iam_propagation\":600,\"silence\":$1}"
}

@test "a bucket that gives no answer at all: the boot leaves after its silence, no later one counts" {
  silent 1
  fault GET storage/v1 0 -1
  fault POST upload 0 -1
  BOOT_EDIT="$BRIEF" run -1 vm::boot
  said 'the next one would fail too: boot record .*: no answer for 1 s, the last status 000'
  [[ "$(order)" == "listManagedInstances:200 deleteInstances:200 poweroff " ]]
}

@test "a bucket that always says 503: the boot leaves after its silence" {
  silent 1
  fault GET storage/v1 503 -1
  fault POST upload 503 -1
  BOOT_EDIT="$BRIEF" run -1 vm::boot
  said 'no answer for 1 s, the last status 503'
  [[ "$(order)" == "listManagedInstances:200 deleteInstances:200 poweroff " ]]
}

@test "storage that refuses connections, has no name, or never answers: leave" {
  local port host
  "$PYTHON" -c 'import socket, time
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
time.sleep(600)' >"$BATS_TEST_TMPDIR/port" 3>&- &
  local job=$!
  wait_until test -s "$BATS_TEST_TMPDIR/port"
  port="$(<"$BATS_TEST_TMPDIR/port")"
  silent 1
  for host in 127.0.0.1:1 storage.invalid "127.0.0.1:$port"; do
    : >"$CLOUD/calls"
    STORAGE_EMULATOR_HOST="http://$host" BOOT_EDIT="$BRIEF; s/^CALL_SEC=120\$/CALL_SEC=2/" run -1 vm::boot
    [[ "$(order)" == "listManagedInstances:200 deleteInstances:200 poweroff " ]]
  done
  kill "$job"
}

@test "a silence that ends does not make a VM leave, even if calls were not permitted before" {
  heal
  silent 60
  fault POST upload 503 3
  fault GET bundle.zip 403 1
  fault GET bundle.zip 0 2
  run -0 vm::boot
  [[ "$(order)" == "poweroff " ]]
}

@test "metadata that is incomplete for long, with a token: leave" {
  fault GET instance/zone 503 -1
  BOOT_EDIT='s/^SILENCE=9000$/SILENCE=10/' run -1 vm::boot
  said 'the next one would fail too: the metadata server gives no complete answer'
  [[ "$(order)" == "listManagedInstances:200 deleteInstances:200 poweroff " ]]
}

@test "a metadata server without an id at first, and then with one: leave" {
  fault GET instance/id 503 2
  fault GET instance/zone 503 -1
  BOOT_EDIT='s/^SILENCE=9000$/SILENCE=0/' run -1 vm::boot
  [[ "$(order)" == "listManagedInstances:200 deleteInstances:200 poweroff " ]]
}

@test "a metadata server that is down: a VM can only power off, and says so" {
  fault GET computeMetadata 503 -1
  BOOT_EDIT='s/^SILENCE=9000$/SILENCE=10/; s/_WITHOUT_TOKEN_TENTHS=600$/_WITHOUT_TOKEN_TENTHS=10/' \
    run -1 vm::boot
  said 'without a token this VM cannot leave its group'
  [[ "$(order)" == "poweroff " ]]
}

@test "a VM that gets no token can only power off" {
  silent 1
  fault GET default/token 503 -1
  BOOT_EDIT="$BRIEF; s/_WITHOUT_TOKEN_TENTHS=600\$/_WITHOUT_TOKEN_TENTHS=10/" run -1 vm::boot
  said 'without a token this VM cannot leave its group'
  [[ "$(order)" == "poweroff " ]]
}

@test "permissions that never come: the first boot leaves after its iam wait, its end written" {
  heal
  metadata attributes/outlast-timeouts '{"backoff":0,"iam_propagation":0}'
  fault GET bundle.zip 403 -1
  run -1 vm::boot
  [[ "$(json "$(object "$RECORD.end.json")" reason)" == forbidden ]]
  [[ "$(order)" == "listManagedInstances:200 deleteInstances:200 poweroff " ]]
}

@test "permissions that come late are no reason to leave" {
  heal
  metadata attributes/outlast-timeouts '{"backoff":0,"iam_propagation":60}'
  fault GET bundle.zip 403 3
  run -0 vm::boot
  [[ "$(order)" == "poweroff " ]]
}

@test "metadata that lacks a key, or has one that cannot be read: the first boot leaves" {
  rm "$CLOUD/metadata/instance/attributes/outlast-run"
  run -22 vm::boot
  said 'as the next one would fail too: metadata key outlast-run: missing'
  [[ "$(order)" == "listManagedInstances:200 deleteInstances:200 poweroff " ]]
  metadata attributes/outlast-run run1
  metadata attributes/outlast-resume one
  run -1 vm::boot
  [[ "$(order)" == *"deleteInstances:200 poweroff "*"deleteInstances:200 poweroff " ]]
}

@test "what every VM of the template would meet: the first boot leaves, its end written" {
  local leaves="listManagedInstances:200 deleteInstances:200 poweroff "
  heal
  echo damaged >"$(object experiments/digits/bundles/bundle.zip)"
  run -1 vm::boot
  said 'as the next one would fail too: bundle .*: sha256 is .*, must be .* as the template says'
  [[ "$(calls 'GET .*bundle.zip')" == 2 ]]
  [[ "$(json "$(object "$RECORD.end.json")" reason)" == setup-failed ]]
  [[ "$(order)" == "$leaves" ]]

  echo 'no zip' >"$(object experiments/digits/bundles/bundle.zip)"
  metadata attributes/outlast-bundle-sha256 "$(echo 'no zip' | sha256sum | head -c 64)"
  run -1 vm::boot
  said 'as the next one would fail too: bundle .*: is not a zip file'
  metadata attributes/outlast-bundle-sha256 12
  run -1 vm::boot
  said "as the next one would fail too: metadata key outlast-bundle-sha256 is '12'"
  metadata attributes/outlast-delivery image
  metadata attributes/outlast-bundle-sha256 "$(printf '%064d' 0)"
  run -1 vm::boot
  said 'as the next one would fail too: bundle /opt/outlast/bundles/.*: is not in the image'
  [[ "$(order)" == "$leaves$leaves$leaves$leaves" ]]
}

@test "a bundle that is damaged on its way once is fetched again" {
  heal
  fault GET bundle.zip 200 1 # with other bytes
  run -0 vm::boot
  [[ "$(calls 'GET .*bundle.zip')" == 2 ]]
}

@test "a supervisor that every VM would refuse to start: the first boot leaves" {
  heal
  echo 'import sys; print("outlast-args: must be a list", file=sys.stderr); raise SystemExit(64)' \
    >"$OUTLAST_ROOT/act.py"
  run -64 vm::boot
  said 'as the next one would fail too: outlast-args: must be a list'
  [[ "$(order)" == "listManagedInstances:200 deleteInstances:200 poweroff " ]]
}

@test "an image without a usable Python: the first boot leaves" {
  heal
  rm -r "$OUTLAST_ROOT/opt/outlast/venv"
  local name
  for name in python3 python3.13 python3.12 python3.11; do
    command_in "$OUTLAST_ROOT/bin/$name" 'exit 1'
  done
  run -1 vm::boot
  said 'as the next one would fail too: python3: .*must be 3.11 to 3.13'
  [[ "$(order)" == "listManagedInstances:200 deleteInstances:200 poweroff " ]]
}

@test "boots in a row leave before they have taken 20 minutes, ends and gaps apart" {
  earlier_boots 4 '3 hours ago'
  local n
  for n in 1 2 3 4; do
    object "$PREFIX/boots/$((1000 + n))-0.end.json" '176 minutes ago' >/dev/null
  done
  run -1 vm::boot
  said 'boot 5 in a row'
  [[ "$(order)" == "poweroff " ]]
  object "$PREFIX/boots/1004-0.end.json" '171 minutes ago' >/dev/null
  run -1 vm::boot
  said 'as the next one would fail too: boots in a row without an attempt: 5, which took 12[56]. s'
  [[ "$(order)" == "poweroff listManagedInstances:200 deleteInstances:200 poweroff " ]]
}

@test "a silence that an earlier boot of this disk met counts from its begin" {
  silent 600
  fault GET storage/v1 0 -1
  fault POST upload 0 -1
  mkdir -p "$OUTLAST_ROOT/var/lib/outlast"
  echo "$(($(date +%s) - 700))0" >"$OUTLAST_ROOT/var/lib/outlast/silent-since"
  run -1 vm::boot
  said 'no answer for 600 s, the last status 000'
  [[ "$(order)" == "listManagedInstances:200 deleteInstances:200 poweroff " ]]
}

@test "an answer of storage ends the silence that is noted on the disk" {
  heal
  mkdir -p "$OUTLAST_ROOT/var/lib/outlast"
  echo "$(date +%s)0" >"$OUTLAST_ROOT/var/lib/outlast/silent-since"
  run -0 vm::boot
  [[ ! -e "$OUTLAST_ROOT/var/lib/outlast/silent-since" ]]
}
