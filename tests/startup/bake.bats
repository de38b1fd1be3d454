#!/usr/bin/env bats
# The builder of an image on a separate system, whose commands are stand-ins: what it installs and
# holds, and what it takes away before the disk becomes an image.

load helper

setup() {
  vm::make
  KERNEL="$(uname -r)"
  CURL="$(command -v curl)"
  mkdir -p "$OUTLAST_ROOT"/etc/{ssh,apt/apt.conf.d} "$OUTLAST_ROOT"/home/{ubuntu,someone}
  printf 'ID=debian\nVERSION_ID="12"\n' >"$OUTLAST_ROOT/etc/os-release"
  printf '%s\n' root:x:0:0::/root:/bin/sh ubuntu:x:1000:1000::/home/ubuntu:/bin/sh \
    someone:x:1001:1001::/home/someone:/bin/sh nobody:x:65534:65534::/:/bin/false \
    >"$OUTLAST_ROOT/etc/passwd"
  local tool
  for tool in apt-get apt-mark cloud-init dpkg systemctl userdel; do
    command_in "$OUTLAST_ROOT/bin/$tool" "echo $tool \"\$@\" >>'$CLOUD/calls'"
  done
  command_in "$OUTLAST_ROOT/bin/dpkg-query" \
    "printf '%s\n' 'installed linux-image-$KERNEL' 'not-installed linux-image-$KERNEL-unsigned' \
  'installed linux-image-cloud-amd64'
echo 'dpkg-query: no packages found matching linux-gcp*' >&2
exit 1"
  command_in "$OUTLAST_ROOT/bin/modinfo" 'echo 580.95.05'
  command_in "$OUTLAST_ROOT/bin/curl" "
case \"\$*\" in
*developer.download.nvidia.com*)
  echo \"curl \${*: -1}\" >>'$CLOUD/calls'
  echo keyring >\"\$(sed 's/.*--output \([^ ]*\).*/\1/' <<<\"\$*\")\"
  ;;
*) exec '$CURL' \"\$@\" ;;
esac"
  command_in "$OUTLAST_ROOT/bin/python3" '
if [[ "$1 $2" == "-m venv" ]]; then
  mkdir -p "$3/bin" && cp "$0" "$3/bin/python"
fi'
  metadata attributes/outlast-bake-recipe 0123456789abcdef
  metadata attributes/outlast-bake-vm "$(echo '# nothing' | gzip -n | base64 -w 0)"
  # A reader of the outcome stops the VM at once.
  command_in "$OUTLAST_ROOT/bin/sleep" '[[ $1 == infinity ]] || exec /usr/bin/sleep "$@"'
}

bake() {
  /bin/bash "$BATS_FILE_TMPDIR/bake.sh"
}

# state: the last report.
state() {
  cat "$CLOUD/guest/state"
}

# its_keyring_is_known DIGEST: the file that NVIDIA's host gives out has it.
its_keyring_is_known() {
  local real
  real="$(command -v sha256sum)"
  command_in "$OUTLAST_ROOT/bin/sha256sum" "
if [[ \$* == '--check --status' ]]; then
  read -r digest file
  [[ \$digest == $1 && \$file == */keyring.deb ]]
  exit
fi
exec '$real' \"\$@\""
}

@test "a keyring of other bytes than the known ones is not installed" {
  metadata attributes/outlast-bake-driver 580
  run -1 bake
  [[ "$(state)" == "failed driver" ]]
  said "the keyring of NVIDIA's packages for debian12 has other bytes than the known ones"
  [[ "$(calls '^apt-get .*keyring.deb')" == 0 ]]
}

@test "a system whose keyring is not known is refused before anything is fetched" {
  metadata attributes/outlast-bake-driver 580
  printf 'ID=debian\nVERSION_ID="14"\n' >"$OUTLAST_ROOT/etc/os-release"
  run -1 bake
  said "debian14: the key of NVIDIA's packages is known for"
  [[ "$(calls '^curl https://developer')" == 0 ]]
}

@test "the driver and CUDA come from NVIDIA for this system's kernel, and are held" {
  its_keyring_is_known e7f219eab6fe4819cdb5c15b98233dc3420302d9c00883219cd3d896857cf48d
  metadata attributes/outlast-bake-driver 580
  metadata attributes/outlast-bake-cuda 12.9
  run -0 bake
  [[ "$(state)" == "done" ]]
  [[ "$(calls '^curl https://developer.*/repos/debian12/x86_64/cuda-keyring_.*deb$')" == 1 ]]
  [[ "$(calls '^apt-get .* install .* -- .*/keyring.deb$')" == 1 ]]
  [[ "$(calls "^apt-get .* install .* -- linux-headers-$KERNEL nvidia-open-580 cuda-toolkit-12-9$")" == 1 ]]
  [[ "$(calls '^apt-mark hold nvidia-open-580 cuda-toolkit-12-9$')" == 1 ]]
}

@test "GPUs before Turing get the proprietary modules, a newer branch the package that pins it" {
  its_keyring_is_known e7f219eab6fe4819cdb5c15b98233dc3420302d9c00883219cd3d896857cf48d
  metadata attributes/outlast-bake-driver 580
  metadata attributes/outlast-bake-modules proprietary
  run -0 bake
  [[ "$(calls "^apt-get .* install .* -- linux-headers-$KERNEL cuda-drivers-580$")" == 1 ]]
  metadata attributes/outlast-bake-driver 590.48
  metadata attributes/outlast-bake-modules open
  run bake
  [[ "$(calls '^apt-get .* install .* -- nvidia-driver-pinning-590.48$')" == 1 ]]
  [[ "$(calls "^apt-get .* install .* -- linux-headers-$KERNEL nvidia-open$")" == 1 ]]
}

@test "a driver's exact version is asked for and must be the module's" {
  its_keyring_is_known e7f219eab6fe4819cdb5c15b98233dc3420302d9c00883219cd3d896857cf48d
  metadata attributes/outlast-bake-driver 580.65.06
  run -1 bake
  [[ "$(calls "^apt-get .* -- linux-headers-$KERNEL nvidia-open-580=580.65.06\*$")" == 1 ]]
  [[ "$(state)" == "failed driver" ]]
  said "the kernel $KERNEL has no nvidia module 580.65.06"
  [[ ! -e "$OUTLAST_ROOT/opt/outlast/recipe" ]]
}

@test "a system that NVIDIA has no packages for is refused" {
  metadata attributes/outlast-bake-driver 580
  command_in "$OUTLAST_ROOT/bin/curl" "
case \"\$*\" in
*developer.download.nvidia.com*) exit 22 ;;
*) exec '$CURL' \"\$@\" ;;
esac"
  run -1 bake
  said 'NVIDIA has no packages for debian12; choose another base'
  [[ "$(calls '^apt-get .*install')" == 0 ]]
}

@test "the kernel is held and nothing upgrades itself, with or without a driver" {
  run -0 bake
  [[ "$(calls "^apt-mark hold linux-image-$KERNEL linux-image-cloud-amd64$")" == 1 ]]
  [[ "$(calls '^systemctl disable unattended-upgrades.service apt-daily.timer')" == 1 ]]
  grep -q 'APT::Periodic::Unattended-Upgrade "0";' "$OUTLAST_ROOT/etc/apt/apt.conf.d/99outlast"
  [[ "$(calls '^curl|^apt-get .*install')" == 0 ]]
}

@test "packages that cannot be installed stop the bake, which says which" {
  metadata attributes/outlast-bake-packages 'tree jq'
  metadata attributes/outlast-timeouts '{"backoff":0}'
  command_in "$OUTLAST_ROOT/bin/apt-get" "
echo apt-get \"\$@\" >>'$CLOUD/calls'
[[ \$* != *install* ]] || { echo 'E: no package jq' >&2; exit 100; }"
  run -1 bake
  [[ "$(state)" == "failed packages" ]]
  grep -q 'could not install tree jq' "$CLOUD/guest/log"
  grep -q 'E: no package jq' "$CLOUD/guest/log"
  [[ "$(tail -n 1 "$CLOUD/calls")" == poweroff ]]
}

@test "a recipe's data is read at the payer's expense where the requester pays, and only there" {
  local sha256
  printf 'rows' >"$(object d/a.csv)"
  sha256="$(sha256sum <"$(object d/a.csv)" | head -c 64)"
  metadata attributes/outlast-bake-data "$sha256 gs://bucket/d/a.csv a.csv"
  printf 'payer-1' >"$CLOUD/payer"
  run -1 bake
  [[ "$(state)" == "failed data" ]]
  said 'd/a.csv: its bucket lets the requester pay; set outlast:dataPayer to the project that pays'
  metadata attributes/outlast-bake-payer payer-1
  run -0 bake
  [[ "$(<"$OUTLAST_ROOT/opt/outlast/data/a.csv")" == rows ]]
  [[ "$(calls 'userProject=payer-1 200$')" == 1 ]]
  rm "$CLOUD/payer" "$OUTLAST_ROOT/opt/outlast/data/a.csv"
  run -0 bake
  [[ "$(calls 'userProject=')" == 1 ]]
}

@test "nothing of this machine or of its users is left" {
  mkdir -p "$OUTLAST_ROOT"/var/lib/{apt/lists,dhcp,google} "$OUTLAST_ROOT"/var/{tmp,log/journal}
  local gone=(etc/ssh/ssh_host_rsa_key home/ubuntu/.ssh root/.bash_history var/lib/apt/lists/index
    var/lib/dhcp/lease var/lib/google/state var/log/journal/1 var/tmp/x)
  local name
  for name in "${gone[@]}"; do
    echo secret >"$OUTLAST_ROOT/$name"
  done
  echo kept >"$OUTLAST_ROOT/root/.bashrc"
  echo secret >"$OUTLAST_ROOT/var/log/syslog"
  echo 1234 >"$OUTLAST_ROOT/etc/machine-id"
  run -0 bake
  for name in "${gone[@]}"; do
    [[ ! -e "$OUTLAST_ROOT/$name" ]]
  done
  [[ -e "$OUTLAST_ROOT/root/.bashrc" ]]
  [[ -e "$OUTLAST_ROOT/etc/machine-id" && ! -s "$OUTLAST_ROOT/etc/machine-id" ]]
  [[ ! -s "$OUTLAST_ROOT/var/log/syslog" ]]
  [[ "$(calls '^userdel')" == 2 ]]
  [[ "$(calls '^userdel --force --remove (ubuntu|someone)$')" == 2 ]]
  [[ "$(calls '^cloud-init clean --logs --seed$')" == 1 ]]
  [[ "$(calls '^apt-get clean$')" == 1 ]]
  [[ "$(<"$OUTLAST_ROOT/opt/outlast/recipe")" == 0123456789abcdef ]]
  [[ -z "$(find "$OUTLAST_ROOT/opt/outlast" -perm /022 ! -type l)" ]]
}
