# shellcheck shell=sh
# Sourced by the stand-in hosts.

# step_aside HERE NAME ARG…: becomes the official NAME if PATH has one outside HERE. A stand-in of
# another checkout is not an official one: whichever stand-in comes first marks the environment.
step_aside() {
  here="$1"
  name="$2"
  shift 2
  [ -z "${OUTLAST_STAND_IN:-}" ] || return 0
  export OUTLAST_STAND_IN=1
  official=""
  rest="$PATH:"
  while [ -n "$rest" ]; do
    folder="${rest%%:*}"
    rest="${rest#*:}"
    [ -x "$folder/$name" ] || continue
    [ "$(cd "$folder" && pwd -P)" != "$here" ] || continue
    official="$folder/$name"
    break
  done
  [ -z "$official" ] || exec "$official" "$@"
}
