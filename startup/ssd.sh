#!/bin/bash
#
# The VM's local SSDs as one mounted folder, for data and snapshots. Sourced by boot.sh after lib.sh
# and system.sh; sets no shell options and does nothing when sourced.
#
# Their data is lost with the machine, so each boot that finds them unmounted formats them: a RAID 0
# of all, or only the first one if no array can be created. outlast/base/scratch_space.py finds them
# by the names used here. If no SSD can be used, the VM trains with its boot disk.

readonly SSD_FOLDER="$ROOT/mnt/local-ssd"
readonly SSD_ARRAY="$ROOT/dev/md/outlast"

# ssd::mount: always returns 0; logs failures.
ssd::mount() {
  local link devices=() device
  for link in "$ROOT"/dev/disk/by-id/google-local-*; do
    if [[ -e $link && $link != *-part* ]]; then
      devices+=("$link")
    fi
  done
  if ((${#devices[@]} == 0)); then
    return 0
  fi
  if ssd::is_mounted; then
    log::info "$CURRENT_STEP" "$SSD_FOLDER is mounted already"
    return 0
  fi
  device="${devices[0]}"
  STEP_LOG="$LOG_DIR/ssd.log"
  : >"$STEP_LOG"
  if ((${#devices[@]} > 1)); then
    if ssd::join "${devices[@]}" >>"$STEP_LOG" 2>&1; then
      device="$SSD_ARRAY"
    else
      log::warn "$CURRENT_STEP" "no array of ${#devices[@]} local SSDs:" \
        "$(tail -n 1 "$STEP_LOG"); one of them is used"
    fi
  fi
  if ssd::make_folder "$device" >>"$STEP_LOG" 2>&1; then
    log::info "$CURRENT_STEP" "$SSD_FOLDER is on ${device#"$ROOT"}, of ${#devices[@]} local SSDs"
  else
    log::warn "$CURRENT_STEP" "local SSD ${device#"$ROOT"}: $(tail -n 1 "$STEP_LOG"); not used"
  fi
  STEP_LOG=""
}

ssd::is_mounted() {
  grep -qsF " ${SSD_FOLDER#"$ROOT"} " "$ROOT/proc/self/mounts"
}

# ssd::join DEVICE...: creates an array of the devices, after stopping one of an earlier boot, which
# the system may have assembled under any name.
ssd::join() {
  if ! command -v mdadm; then
    if ! system::owns apt-get; then
      echo "mdadm is missing"
      return 1
    fi
    apt::install mdadm || return
  fi
  mdadm --stop --scan || true
  mkdir -p "${SSD_ARRAY%/*}" &&
    mdadm --create "$SSD_ARRAY" --level=0 --raid-devices="$#" --force --run "$@"
}

# ssd::make_folder DEVICE: formats and mounts a device, without a reserve for root, and with discard
# so that the disk stays fast.
ssd::make_folder() {
  mkfs.ext4 -q -F -m 0 "$1" && mkdir -p "$SSD_FOLDER" &&
    mount -o discard,noatime "$1" "$SSD_FOLDER" && chmod 0755 "$SSD_FOLDER"
}
