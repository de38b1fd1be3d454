#!/bin/sh
# A training in a shell: counts to TOTAL, one second's work at a time. It keeps where it is in a
# separate file, and says so when that file is complete.
total="${TOTAL:-20}"
place="${CHECKPOINT_DIR:-.}/place"

i=0
[ -f "$place" ] && i="$(cat "$place")"
while [ "$i" -lt "$total" ]; do
  sleep "${PACE:-1}"
  i=$((i + 1))
  echo "$i" >"$place.new" && mv "$place.new" "$place"
  echo "step $i of $total"
  command -v outlast >/dev/null && outlast mark
done
echo "counted to $i" >"${RESULT_DIR:-.}/count.txt"
