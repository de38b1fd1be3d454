#!/bin/bash
#
# Bakes an image. The guest agent starts it once, as root, as the builder's `startup-script`. It
# installs the recipe's parts under /opt/outlast, removes everything that belongs only to this
# machine, reports the outcome, and waits until it is stopped. The disk then becomes the image. The VM
# keeps running because a running VM is deleted at its limit with its disk; a stopped one would keep
# its disk forever if no later bake deleted it.
#
# Metadata (instance/attributes): outlast-bake-recipe (its hash), outlast-bake-vm (the supervisor's
#   requirements), and, as far as the recipe has them: outlast-bake-packages (names, by spaces),
#   outlast-bake-driver, outlast-bake-cuda (versions), outlast-bake-modules (open or proprietary),
#   outlast-bake-requirements, outlast-bake-script, outlast-bake-data
#   (lines `sha256 url path`), outlast-bake-payer (a project), outlast-bake-bundle (`sha256 gs://…`).
#   Files come compressed by gzip and in base64.
# Environment: lib.sh lists it; PIP_* reaches pip.
#
# The platform sees no exit code, so guest attributes report: outlast/state is `baking STEP`, `done`
# or `failed STEP`; outlast/log has the last lines of the current or failed step.
#
# Exit codes: 0 done; 75 stopped by a signal; else the failing step's.

set -euo pipefail

# The metadata has one script: outlast/spec/startup_script.py replaces these lines with the files.
# shellcheck source=startup/lib.sh
source "${BASH_SOURCE[0]%/*}/lib.sh"
# shellcheck source=startup/system.sh
source "${BASH_SOURCE[0]%/*}/system.sh"
# shellcheck source=startup/interpreter.sh
source "${BASH_SOURCE[0]%/*}/interpreter.sh"

# On the disk, because /run is a tenth of the memory and forbids execution. Deleted before the disk
# becomes an image.
readonly BAKE_DIR="$ROOT/var/lib/outlast-bake"
readonly TARGET="$ROOT/opt/outlast"
readonly LOG_BYTES=30000
readonly CUDA_REPOSITORY=https://developer.download.nvidia.com/compute/cuda/repos
# SHA-256 of each system's cuda-keyring_1.1-1_all.deb, as in Google's installer of GPU drivers.
declare -rA KEYRINGS=(
  [debian12]=e7f219eab6fe4819cdb5c15b98233dc3420302d9c00883219cd3d896857cf48d
  [debian13]=dd28f1f6ba0038180d6b23f846cefca1e3de4c9327751665241370bacea452a1
  [ubuntu2204]=d93190d50b98ad4699ff40f4f7af50f16a76dac3bb8da1eaaf366d47898ff8df
  [ubuntu2404]=d2a6b11c096396d868758b86dab1823b25e14d70333f1dfa74da5ddaf6a06dba
)
readonly REPORT_SEC=5

FINISHED=""
STOPPING=""
REPORTER=""
PAYER=""

# ---- reports ------------------------------------------------------------------------------------

# bake::tell KEY <TEXT: sets the guest attribute outlast/KEY.
bake::tell() {
  "${CURL[@]}" --noproxy '*' --max-time 10 --fail --output /dev/null \
    --header 'Metadata-Flavor: Google' --request PUT --data-binary @- \
    "$METADATA_URL/instance/guest-attributes/outlast/$1"
}

# bake::tell_state TEXT...: reports the state; failing to send it is not a failure.
bake::tell_state() {
  printf '%s' "$*" | bake::tell state || log::warn tell "state: not sent"
}

# bake::report: sends the current step's last lines repeatedly, in case this VM ends before the step.
# A log may be deleted at any moment; the reports continue.
bake::report() {
  local file
  set +e
  while sleep "$REPORT_SEC"; do
    : >"$BAKE_DIR/telling"
    file="$(find "$BAKE_DIR" "$LOG_DIR" -maxdepth 1 -name '*.log' ! -name boot.log \
      -newer "$BAKE_DIR/sent" -printf '%T@ %p\n' 2>/dev/null | LC_ALL=C sort -n | tail -n 1)"
    mv -f "$BAKE_DIR/telling" "$BAKE_DIR/sent"
    if [[ -n $file ]]; then
      {
        tail -n "$LAST_LINES" "${file#* }" | tail -c "$LOG_BYTES"
        echo # For a step without output, too.
      } | bake::tell log
    fi
  done
}

# bake::start_reporter: starts bake::report in a separate process group, so that its sleep ends with
# it.
bake::start_reporter() {
  : >"$BAKE_DIR/sent"
  set -m
  bake::report >/dev/null 2>&1 3>&- 9>&- </dev/null &
  set +m
  REPORTER=$!
  disown "$REPORTER"
}

bake::stop_reporter() {
  if [[ -n $REPORTER ]]; then
    kill -- "-$REPORTER" 2>/dev/null || true
    REPORTER=""
  fi
}

# bake::step NAME COMMAND...: runs a step, reports its state, and keeps its output for a failure.
bake::step() {
  local name="$1"
  STEP_LOG="$BAKE_DIR/$name.log"
  : >"$STEP_LOG"
  bake::tell_state "baking $name"
  step::run "$@"
}

# bake::get KEY: prints the metadata key outlast-bake-KEY; nothing if it is absent.
bake::get() {
  retry::run "$METADATA_TRIES" bake::ask "$1"
}

bake::ask() {
  local rc=0
  metadata::get "instance/attributes/outlast-bake-$1" || rc=$?
  return "$((rc == STATUS_ABSENT ? 0 : rc))"
}

# bake::get_file KEY FILE: writes the file that a key's value contains; nothing if it is absent.
bake::get_file() {
  bake::get "$1" >"$BAKE_DIR/encoded" || return
  if [[ -s $BAKE_DIR/encoded ]]; then
    base64 -d "$BAKE_DIR/encoded" | gzip -dc >"$2"
  fi
}

# ---- steps --------------------------------------------------------------------------------------

# bake::read: writes the recipe's files to the place of a bundle's files, for interpreter.sh.
bake::read() {
  BUNDLE_DIR="$BAKE_DIR/files"
  if [[ -L $TARGET ]]; then
    rm -f "$TARGET" # It may link to another machine's path.
  fi
  mkdir -p "$BUNDLE_DIR/requirements" "$TARGET"
  chmod -R u+w "$TARGET"
  bake::get_file vm "$BUNDLE_DIR/requirements/vm.txt" || return
  bake::get_file requirements "$BUNDLE_DIR/requirements/user.txt" || return
  bake::get_file script "$BUNDLE_DIR/script" || return
  if [[ ! -s $BUNDLE_DIR/requirements/vm.txt ]]; then
    log::error "$CURRENT_STEP" "metadata key outlast-bake-vm: missing; run pulumi up again"
    return 1
  fi
}

# bake::keep_still: turns off automatic upgrades, now and in VMs of the image, and holds the kernel.
bake::keep_still() {
  local kernels
  system::quiet
  system::owns apt-get || return 0
  systemctl disable unattended-upgrades.service apt-daily.timer apt-daily-upgrade.timer \
    >>"$STEP_LOG" 2>&1 || true
  printf 'APT::Periodic::Enable "0";\nAPT::Periodic::Unattended-Upgrade "0";\n' \
    >"$ROOT/etc/apt/apt.conf.d/99outlast"
  kernels="$(apt::installed 'linux-image-*' 'linux-headers-*' 'linux-gcp*')" || return
  xargs --no-run-if-empty apt-mark hold <<<"$kernels" >>"$STEP_LOG" 2>&1
}

bake::need_apt() {
  if ! system::owns apt-get; then
    log::error "$CURRENT_STEP" "apt-get: no system of this VM's own to install packages into;" \
      "choose a Debian or Ubuntu base"
    return 1
  fi
}

# bake::install_packages NAME...
bake::install_packages() {
  bake::need_apt || return
  if ! apt::install "$@"; then
    log::error "$CURRENT_STEP" "apt-get could not install $*; correct the recipe's packages"
    return 1
  fi
}

# bake::install_driver DRIVER MODULES CUDA: installs NVIDIA's own packages for the running kernel, and
# holds their versions. DRIVER is a branch (580) or a version (580.95.05), MODULES its kernel modules
# (open, proprietary); DRIVER or CUDA may be empty. From branch 590 on, another package pins the
# branch or version.
bake::install_driver() {
  local driver="$1" modules="$2" cuda="$3" distribution key="$BAKE_DIR/keyring.deb" names=() held=()
  local package=nvidia-open
  bake::need_apt || return
  # shellcheck source=/dev/null
  distribution="$(source "$ROOT/etc/os-release" && printf '%s%s' "$ID" "${VERSION_ID//./}")" || return
  if [[ -z ${KEYRINGS[$distribution]:-} ]]; then
    log::error "$CURRENT_STEP" \
      "$distribution: the key of NVIDIA's packages is known for ${!KEYRINGS[*]} only; choose one of them as base"
    return 1
  fi
  "${CURL[@]}" --fail --location --max-time 120 --output "$key" \
    "$CUDA_REPOSITORY/$distribution/x86_64/cuda-keyring_1.1-1_all.deb" >>"$STEP_LOG" 2>&1 || {
    log::error "$CURRENT_STEP" "NVIDIA has no packages for $distribution; choose another base"
    return 1
  }
  printf '%s  %s\n' "${KEYRINGS[$distribution]}" "$key" | sha256sum --check --status || {
    log::error "$CURRENT_STEP" \
      "the keyring of NVIDIA's packages for $distribution has other bytes than the known ones; nothing of it was installed"
    return 1
  }
  bake::install_packages "$key" || return
  if [[ -n $driver ]]; then
    if [[ $modules == proprietary ]]; then
      package="cuda-drivers"
    fi
    if ((${driver%%.*} >= 590)); then
      bake::install_packages "nvidia-driver-pinning-$driver" || return
    else
      package+="-${driver%%.*}"
    fi
    names+=("linux-headers-$(uname -r)" "$package")
    held+=("$package")
    if [[ $driver == *.* ]] && ((${driver%%.*} < 590)); then
      names[1]+="=$driver*"
    fi
  fi
  if [[ -n $cuda ]]; then
    names+=("cuda-toolkit-${cuda//./-}")
    held+=("cuda-toolkit-${cuda//./-}")
  fi
  bake::install_packages "${names[@]}" || return
  apt-mark hold "${held[@]}" >>"$STEP_LOG" 2>&1 || return
  if [[ -n $driver && "$(modinfo -F version nvidia 2>>"$STEP_LOG")" != "$driver"* ]]; then
    log::error "$CURRENT_STEP" "the kernel $(uname -r) has no nvidia module $driver"
    return 1
  fi
}

bake::make_environment() {
  python::make_environment "$TARGET/venv" vm.txt "give the builder access to the package index" \
    --require-hashes
}

bake::make_user_environment() {
  python::make_environment "$TARGET/user-venv" user.txt \
    "correct the recipe's requirements, or give the builder access to the package index" \
    --require-hashes
}

# bake::run_script: runs the recipe's script as root in an empty folder; OUTLAST_IMAGE is the image's
# folder.
bake::run_script() {
  local rc=0
  mkdir -p "$BAKE_DIR/script"
  (
    cd "$BAKE_DIR/script"
    export OUTLAST_IMAGE="$TARGET"
    chmod 0700 "$BUNDLE_DIR/script"
    exec "$BUNDLE_DIR/script"
  ) >>"$STEP_LOG" 2>&1 9>&- </dev/null || rc=$?
  if ((rc != 0)); then
    log::error "$CURRENT_STEP" "the recipe's script ended with status $rc"
  fi
  return "$rc"
}

# bake::get_object BUCKET NAME FILE: the payer pays only where the bucket lets the requester pay (page
# "Requester Pays", read in November 2026).
bake::get_object() {
  if gcs::get "$@"; then
    return 0
  fi
  if [[ $HTTP_STATUS != 400 ]] || ! grep -q 'requester pays' "$3"; then
    return 1
  fi
  if [[ -z $PAYER ]]; then
    log::error "$CURRENT_STEP" "gs://$1/$2: its bucket lets the requester pay; set" \
      "outlast:dataPayer to the project that pays"
    return 1
  fi
  gcs::get "$@" "$PAYER"
}

# bake::fetch SHA256 URL FILE: the file appears complete and verified, or not at all.
bake::fetch() {
  local found path="${2#gs://}"
  mkdir -p "${3%/*}"
  if [[ $2 == gs://* ]]; then
    http::persist "$2" bake::get_object "${path%%/*}" "${path#*/}" "$3.part" || return
  elif ! retry::run "$PIP_TRIES" "${CURL[@]}" --show-error --fail --location \
    --max-time "$FETCH_SEC" --output "$3.part" "$2" 2>>"$STEP_LOG"; then
    log::error "$CURRENT_STEP" "$2: cannot be read; correct its address"
    return 1
  fi
  found="$(sha256sum <"$3.part")" || return
  if [[ ${found%% *} != "$1" ]]; then
    log::error "$CURRENT_STEP" "$2: sha256 is ${found%% *}, must be $1; correct the recipe's data"
    return 1
  fi
  mv -f "$3.part" "$3"
}

# bake::fetch_data <LINES
bake::fetch_data() {
  local sha256 url path
  while read -r sha256 url path; do
    bake::fetch "$sha256" "$url" "$TARGET/data/$path" || return
  done
}

# bake::clean: removes files of this machine and of people, and files that no image may contain.
bake::clean() {
  local name uid
  rm -rf "$STATE_DIR" "$LOG_DIR"
  rm -f "$ROOT"/etc/ssh/ssh_host_* "$ROOT/var/lib/dbus/machine-id" \
    "$ROOT/var/lib/systemd/random-seed"
  mkdir -p "$ROOT/etc"
  : >"$ROOT/etc/machine-id"
  if system::owns userdel; then
    while IFS=: read -r name _ uid _; do
      if ((uid >= 1000 && uid < 60000)); then
        userdel --force --remove "$name" >>"$STEP_LOG" 2>&1 || true
      fi
    done <"$ROOT/etc/passwd"
  fi
  if system::owns cloud-init; then
    cloud-init clean --logs --seed >>"$STEP_LOG" 2>&1 || true
  fi
  if system::owns apt-get; then
    apt-get clean >>"$STEP_LOG" 2>&1
  fi
  rm -rf "$ROOT"/var/lib/{apt/lists,dhcp,google}/* "$ROOT"/var/log/journal/* "$ROOT"/var/tmp/*
  if [[ -d $ROOT/var/log ]]; then
    find "$ROOT/var/log" -type f -exec truncate -s 0 {} +
  fi
  bake::clear_folder "$ROOT/home"
  bake::clear_folder "$ROOT/root" .bashrc .profile
  find "$TARGET" -depth \( -name .git -o -name .ssh -o -name .env -o -name '.env.*' \
    -o -name .netrc -o -name .git-credentials -o -name 'id_rsa*' -o -name 'id_ecdsa*' \
    -o -name 'id_ed25519*' -o -name '*_history' \) -print -exec rm -rf {} + >>"$STEP_LOG"
}

# bake::clear_folder FOLDER [KEPT NAME...]
bake::clear_folder() {
  local folder="$1" argv=() name
  shift
  for name in "$@"; do
    argv+=(! -name "$name")
  done
  if [[ -d $folder ]]; then
    find "$folder" -mindepth 1 -maxdepth 1 "${argv[@]}" -exec rm -rf {} +
  fi
}

# bake::seal RECIPE: writes the recipe's hash, and makes all files root's, readable by all and writable
# by none. Without root, as in a local cloud, they stay writable: it could not delete such a disk.
bake::seal() {
  local mode=a+rX,go-w
  printf '%s\n' "$1" >"$TARGET/recipe" || return
  if [[ $(id -u) == 0 ]]; then
    mode=a+rX,a-w
    chown -R root:root "$TARGET" || return
  fi
  chmod -R "$mode" "$TARGET"
}

# ---- entry --------------------------------------------------------------------------------------

# bake::on_exit: reports a bake that failed if the script ends before it is done. If the system is
# stopping it reports nothing: the step's last lines were sent, and the VM ends in a moment.
bake::on_exit() {
  local rc=$?
  set +e
  bake::stop_reporter
  if [[ -n $STOPPING ]]; then
    return
  fi
  if [[ -z $FINISHED ]]; then
    {
      if [[ -n $LAST_ERROR ]]; then
        printf '%s\n' "$LAST_ERROR"
      fi
      tail -n "$LAST_LINES" "${STEP_LOG:-/dev/null}"
    } | tail -c "$LOG_BYTES" | bake::tell log || log::warn tell "log: not sent"
    bake::tell_state "failed $CURRENT_STEP"
    log::error "$CURRENT_STEP" "the bake failed with status $rc"
  fi
  # The reader of the report stops the VM.
  sleep infinity
  poweroff || true
}

bake::run() {
  local recipe packages driver modules cuda data bundle
  mkdir -p "$STATE_DIR" "$RUN_DIR" "$LOG_DIR" "$BAKE_DIR"
  exec 9>"$RUN_DIR/boot.lock"
  if command -v flock >/dev/null && ! flock --nonblock 9; then
    return 0
  fi
  trap bake::on_exit EXIT
  trap 'STOPPING=1; exit "$EXIT_INTERRUPTED"' TERM INT
  system::use_scratch
  timeouts::read "$(bake::get timeouts)"
  bake::start_reporter
  bake::step read bake::read
  recipe="$(bake::get recipe)"
  packages="$(bake::get packages)"
  driver="$(bake::get driver)"
  modules="$(bake::get modules)"
  cuda="$(bake::get cuda)"
  data="$(bake::get data)"
  PAYER="$(bake::get payer)"
  bundle="$(bake::get bundle)"
  bake::step keep-still bake::keep_still
  if [[ -n $packages ]]; then
    # A list of names that were checked before.
    # shellcheck disable=SC2086
    bake::step packages bake::install_packages $packages
  fi
  if [[ -n $driver$cuda ]]; then
    bake::step driver bake::install_driver "$driver" "$modules" "$cuda"
  fi
  # A baked base already has an environment; the new one replaces it.
  rm -rf "$TARGET/venv" "$TARGET/recipe"
  bake::step find-python python::find
  bake::step environment bake::make_environment
  if [[ -s $BUNDLE_DIR/requirements/user.txt ]]; then
    bake::step requirements bake::make_user_environment
  fi
  if [[ -n $data ]]; then
    bake::step data bake::fetch_data <<<"$data"
  fi
  if [[ -n $bundle ]]; then
    bake::step trainers bake::fetch "${bundle%% *}" "${bundle#* }" \
      "$TARGET/bundles/${bundle%% *}.zip"
  fi
  if [[ -s $BUNDLE_DIR/script ]]; then
    bake::step script bake::run_script
  fi
  bake::step clean bake::clean
  bake::step seal bake::seal "$recipe"
  bake::stop_reporter
  STEP_LOG=""
  rm -rf "$BAKE_DIR"
  FINISHED=1
  bake::tell_state "done"
}

bake::run
