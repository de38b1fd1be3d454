#!/bin/bash
# A pipeline as many teams have it: each stage is skipped where its output is there already.
set -euo pipefail
work=$1 result=$2
mkdir -p "$work"
if [ ! -e "$work/rows.txt" ]; then
  seq 1 200 | awk '{ print ($1 * 7919) % 1009 }' >"$work/rows.tmp"
  mv "$work/rows.tmp" "$work/rows.txt"
fi
state=$work/model.txt
[ -e "$state" ] || echo "0 0" >"$state"
read -r epoch weight <"$state"
echo "begins after $epoch"
while [ "$epoch" -lt "$3" ]; do
  weight=$(awk -v w="$weight" '{ w = (w * 31 + $1) % 1000003 } END { print w }' "$work/rows.txt")
  epoch=$((epoch + 1))
  echo "$epoch $weight" >"$state"
  echo "$epoch,$weight" >>"$work/history.csv"
  sleep "${PACE:-0}"
done
sort -t, -k1,1n -u "$work/history.csv" | tee "$result/history.csv" | tail -n 1
cp "$state" "$result/model.txt"
