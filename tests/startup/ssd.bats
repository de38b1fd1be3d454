#!/usr/bin/env bats
# Local SSDs: found, joined, formatted and mounted, at each boot, and never a reason not to boot.

load helper

setup() {
  vm::make
  mkdir -p "$OUTLAST_ROOT/dev/disk/by-id" "$OUTLAST_ROOT/proc/self" "$OUTLAST_ROOT/etc"
  local tool
  for tool in mdadm mkfs.ext4 mount; do
    command_in "$OUTLAST_ROOT/bin/$tool" "echo $tool \"\$@\" >>'$CLOUD/calls'"
  done
}

# ssds COUNT
ssds() {
  local n
  for ((n = 0; n < $1; n++)); do
    : >"$OUTLAST_ROOT/dev/nvme0n$((n + 1))"
    ln -s "../../nvme0n$((n + 1))" "$OUTLAST_ROOT/dev/disk/by-id/google-local-nvme-ssd-$n"
  done
}

@test "a machine without local SSDs mounts nothing" {
  run -0 vm::boot
  [[ "$(calls '^m(dadm|kfs|ount)')" == 0 ]]
}

@test "one is formatted and mounted as it is" {
  ssds 1
  run -0 vm::boot
  [[ "$(calls '^mdadm')" == 0 ]]
  [[ "$(calls '^mkfs.ext4 .*google-local-nvme-ssd-0$')" == 1 ]]
  [[ "$(calls '^mount .*google-local-nvme-ssd-0 .*/mnt/local-ssd$')" == 1 ]]
  said 'of 1 local SSDs'
}

@test "several become one array, partitions and other disks left alone" {
  ssds 3
  : >"$OUTLAST_ROOT/dev/disk/by-id/google-local-nvme-ssd-0-part1"
  : >"$OUTLAST_ROOT/dev/disk/by-id/google-persistent-disk-0"
  run -0 vm::boot
  [[ "$(calls '^mdadm --stop --scan$')" == 1 ]]
  [[ "$(calls '^mdadm --create .*/dev/md/outlast --level=0 --raid-devices=3 .*ssd-0 .*ssd-1 .*ssd-2$')" == 1 ]]
  [[ "$(calls '^mount .*/dev/md/outlast .*/mnt/local-ssd$')" == 1 ]]
  [[ "$(calls 'part1|persistent')" == 0 ]]
}

@test "before the bundle and all that it fetches" {
  ssds 1
  run -0 vm::boot
  [[ "$(grep -oE '^mount|bundle.zip' "$CLOUD/calls" | head -n 1)" == mount ]]
}

@test "a boot of the same system that finds it mounted leaves it alone" {
  ssds 2
  echo '/dev/md127 /mnt/local-ssd ext4 rw,noatime 0 0' >"$OUTLAST_ROOT/proc/self/mounts"
  run -0 vm::boot
  [[ "$(calls '^m(dadm|kfs|ount)')" == 0 ]]
  said 'is mounted already'
}

@test "without an array one of them is used" {
  ssds 2
  command_in "$OUTLAST_ROOT/bin/mdadm" 'echo "no such module" >&2; exit 1'
  run -0 vm::boot
  said 'no array of 2 local SSDs: no such module; one of them is used'
  [[ "$(calls '^mount .*google-local-nvme-ssd-0')" == 1 ]]
}

@test "a disk that cannot be used is said, and the VM trains on" {
  ssds 1
  command_in "$OUTLAST_ROOT/bin/mkfs.ext4" 'echo "device is broken" >&2; exit 1'
  run -0 vm::boot
  said 'local SSD /dev/disk/by-id/google-local-nvme-ssd-0: device is broken; not used'
  [[ -e "$OUTLAST_ROOT/seen.json" ]]
}
