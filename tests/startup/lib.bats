#!/usr/bin/env bats
# lib.sh function by function: what the other bats files cannot see from outside.

load helper

setup() {
  vm::make
  mkdir -p "$OUTLAST_ROOT/run/outlast"
  source "$REPO/startup/lib.sh"
}

@test "metadata::get prints the value only, and returns 22 for an absent key" {
  metadata attributes/two $'a\nb'
  run -0 --separate-stderr metadata::get instance/attributes/two
  [[ $output == $'a\nb' && -z $stderr ]]
  run -22 metadata::get instance/attributes/none
  [[ -z $output ]]
  fault GET attributes/two 503 1
  run -1 metadata::get instance/attributes/two
}

@test "metadata::load leaves absent keys out and keeps empty values" {
  metadata attributes/empty ''
  metadata::load id attributes/none attributes/empty
  [[ ${METADATA["id"]} == 4711 ]]
  [[ -z ${METADATA["attributes/none"]+set} ]]
  [[ ${METADATA["attributes/empty"]+set} == set ]]
}

@test "retry::run returns the last status" {
  BACKOFF=0
  fail_then() {
    asked=$((asked + 1))
    return "$((asked < 3 ? 7 : $1))"
  }
  asked=0
  run -9 retry::run 3 fail_then 9
  retry::run 3 fail_then 0
  [[ $asked == 3 ]]
}

@test "delays double up to the backoff" {
  BACKOFF=10
  [[ "$(retry::first_delay) $(retry::next_delay 2) $(retry::next_delay 8)" == "2 4 10" ]]
}

@test "json::flatten reads nesting, escapes and empty values" {
  run -0 json::flatten <<<'{"a": [{"x": "1\"2\\", "e": [], "f": {}}, {"x": -2.5e3}],
    "b": null, "u": "http:\/\/x{,}:"}'
  [[ $output == $'a.0.x\t1"2\\\na.1.x\t-2.5e3\nb\tnull\nu\thttp://x{,}:' ]]
}

@test "json::object writes what a JSON reader reads back" {
  json::object text=$'a "b" \\ \n\t end\x01\xc3' count:=7 odd='x:=1,y=2' >"$OUTLAST_ROOT/o"
  [[ "$(json "$OUTLAST_ROOT/o" text)" == $'a "b" \\ \n\t end' ]]
  [[ "$(json "$OUTLAST_ROOT/o" count)" == 7 ]]
  [[ "$(json "$OUTLAST_ROOT/o" odd)" == 'x:=1,y=2' ]]
}

@test "url::quote encodes all but the unreserved" {
  [[ "$(url::quote 'a/b c+d~e_f-g.h%')" == 'a%2Fb%20c%2Bd~e_f-g.h%25' ]]
}

@test "timeouts::read takes whole and broken seconds and keeps what is missing" {
  timeouts::read '{"backoff":0.5,"heartbeat":10}'
  [[ $BACKOFF == 5 && $IAM_PROPAGATION == 6000 ]]
  timeouts::read '{ "iam_propagation" : 12 }'
  [[ $IAM_PROPAGATION == 120 && $SILENCE == 9000 ]]
  timeouts::read '{"silence":30}'
  [[ $SILENCE == 300 ]]
}

@test "a log line has time, level, step and message, on stderr and the serial port" {
  run -0 --separate-stderr log::warn some-step a message
  [[ -z $output ]]
  [[ $stderr =~ ^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z\ warn\ some-step\ a\ message$ ]]
  [[ "$(<"$OUTLAST_ROOT/dev/ttyS0")" == "$stderr" ]]
}

@test "gcs::stat finds an absent object absent, whether that is 404 or 403" {
  local status
  object p/absent-2 now
  for status in 404 403; do
    echo "$status" >"$CLOUD/absent"
    ! gcs::stat bucket p/absent "$OUTLAST_ROOT/stat" || false
    [[ $HTTP_STATUS == 404 ]]
  done
  ! gcs::get bucket p/absent "$OUTLAST_ROOT/stat" || false
  [[ $HTTP_STATUS == 404 ]]
}

@test "gcs::stat of an object that is there, or may not be listed, stays refused" {
  object p/there now
  fault GET /o/p%2Fthere 403 -1
  ! gcs::stat bucket p/there "$OUTLAST_ROOT/stat" || false
  [[ $HTTP_STATUS == 403 ]]
  echo 403 >"$CLOUD/absent"
  fault GET prefix= 403 -1
  ! gcs::stat bucket p/absent "$OUTLAST_ROOT/stat" || false
  [[ $HTTP_STATUS == 403 ]]
}

@test "gcs::list reads all pages, folders and objects" {
  local n
  for n in 1 2 3 4 5; do
    object "p/$n.json" now
    object "p/f$n/x" now
  done
  gcs::list bucket p/ "$OUTLAST_ROOT/list"
  [[ "$(cut -f 1 "$OUTLAST_ROOT/list" | sort | tr '\n' ' ')" == "p/1.json p/2.json p/3.json p/4.json p/5.json p/f1/ p/f2/ p/f3/ p/f4/ p/f5/ " ]]
}
