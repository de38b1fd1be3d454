#!/bin/bash
#
# The Python that a boot and a bake use, and the environments they make with it. Sourced after
# lib.sh and system.sh; sets no shell options and does nothing when sourced.
#
# Reads BUCKET (empty for the builder of an image), BUNDLE_DIR, and METADATA; sets BASE_PYTHON and
# STEP_LOG.
#
# Environment: PIP_* reaches pip.

# Versions of Python that the bundle's requirements are locked for.
readonly PYTHON_RULE='(3, 11) <= sys.version_info[:2] <= (3, 13)'
readonly PIP_TRIES=3

BUCKET=""
BUNDLE_DIR=""
BASE_PYTHON=""

# python::find: sets BASE_PYTHON to the baked interpreter, or else to the system's.
python::find() {
  local candidate found=""
  if [[ -x $ROOT/opt/outlast/venv/bin/python ]]; then
    BASE_PYTHON="$ROOT/opt/outlast/venv/bin/python"
    return 0
  fi
  for candidate in python3 python3.13 python3.12 python3.11; do
    command -v "$candidate" >/dev/null || continue
    if "$candidate" -I -c "import sys; sys.exit(not $PYTHON_RULE)"; then
      BASE_PYTHON="$candidate"
      return 0
    fi
    found+="$("$candidate" --version 2>&1 || true), "
  done
  step::never "python3: ${found:-missing, }must be 3.11 to 3.13; choose an image with Python" \
    "3.11 to 3.13"
  return 1
}

# python::make_environment VENV FILE HINT [PIP ARGUMENTS...]: builds a virtual environment with the
# bundle's requirements/FILE. Its marker holds their sha256: without it, or with another one, the
# environment is incomplete or belongs to another bundle, and is rebuilt. The first boot gets the
# packages from the index and keeps them in the bucket; later boots install those, with the same hash
# checks, and use no index.
python::make_environment() {
  local venv="$1" file="$2" hint="$3" python="$1/bin/python" wanted kept
  local requirements="$BUNDLE_DIR/requirements/$file" wheels="$STATE_DIR/boot-wheels"
  shift 3
  local pip=("$@" --no-input --disable-pip-version-check --progress-bar off)
  pip+=(--requirement "$requirements")
  local offline=("$python" -m pip install "${pip[@]}" --no-index --find-links "$wheels")
  wanted="$(sha256sum <"$requirements")" || {
    step::never "requirements/$file: not in the bundle; run pulumi up again"
    return 1
  }
  if [[ -x $python && -e $venv/.complete && "$(<"$venv/.complete")" == "${wanted%% *}" ]]; then
    log::info "$CURRENT_STEP" "$venv is complete"
    return 0
  fi
  kept="$(wheels::name "${wanted%% *}")" || return
  rm -rf "$wheels" "$venv"
  if [[ -n $kept ]]; then
    wheels::fetch "$kept" "$wheels" || rm -rf "$wheels"
  fi
  python::make_venv "$venv" || return
  STEP_LOG="$LOG_DIR/pip-${file%.txt}.log"
  : >"$STEP_LOG"
  if [[ ! -d $wheels ]] || ! "${offline[@]}" >>"$STEP_LOG" 2>&1; then
    rm -rf "$wheels"
    if ! retry::run "$PIP_TRIES" "$python" -m pip download "${pip[@]}" --dest "$wheels" \
      >>"$STEP_LOG" 2>&1 || ! "${offline[@]}" >>"$STEP_LOG" 2>&1; then
      log::error "$CURRENT_STEP" "pip could not install requirements/$file; $hint"
      return 1
    fi
    if [[ -n $kept ]]; then
      wheels::keep "$kept" "$wheels"
    fi
  fi
  rm -rf "$wheels" "$wheels.zip"
  printf '%s\n' "${wanted%% *}" >"$venv/.complete.tmp" &&
    mv -f "$venv/.complete.tmp" "$venv/.complete"
  STEP_LOG=""
}

# wheels::name SHA256: prints the object that keeps the packages of these requirements, for machines
# with this Python and C library; nothing for the builder of an image, which has no bucket.
wheels::name() {
  local place key
  if [[ -z $BUCKET ]]; then
    return 0
  fi
  place="$("$BASE_PYTHON" -I -c 'import platform, sys
print(sys.implementation.cache_tag, platform.machine(), *platform.libc_ver())')" || return
  key="$(sha256sum <<<"$1 $place")" || return
  printf '%s/environments/vm-%s.zip' "${METADATA["attributes/outlast-prefix"]}" "${key%% *}"
}

# wheels::fetch NAME FOLDER: fetches the packages that an earlier boot has kept. Fails if there are
# none; pip checks their hashes later.
wheels::fetch() {
  local rc=0
  rm -rf "$2"
  gcs::get "$BUCKET" "$1" "$2.zip" && wheels::unpack "$2.zip" "$2" >&2 || rc=$?
  HTTP_STATUS=000 # none there is no reason for this boot to end
  if ((rc == 0)); then
    log::info "$CURRENT_STEP" "the packages are in the bucket already"
  fi
  return "$rc"
}

# wheels::unpack ZIP FOLDER: unpacks an unchecked file, which must not grow: wheels are stored
# uncompressed. pip checks the hash of each wheel later.
wheels::unpack() {
  "$BASE_PYTHON" -I -c 'import os, sys, zipfile
packed, folder = sys.argv[1:]
with zipfile.ZipFile(packed) as archive:
    size = sum(member.file_size for member in archive.infolist())
    if size > os.path.getsize(packed):
        sys.exit(f"{packed}: {size} bytes unpacked, which is more than its own size")
    archive.extractall(folder)' "$1" "$2"
}

# wheels::keep NAME FOLDER: keeps the packages for later boots. The first write wins; a failure is only
# logged.
wheels::keep() {
  if ! "$BASE_PYTHON" -I -c 'import pathlib, sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as archive:
    for path in sorted(pathlib.Path(sys.argv[2]).iterdir()):
        archive.write(path, path.name)' "$2.zip" "$2" >&2 || ! gcs::create "$BUCKET" "$1" "$2.zip"; then
    log::warn "$CURRENT_STEP" "the packages were not kept (status $HTTP_STATUS); the next boot" \
      "fetches them again"
  fi
  HTTP_STATUS=000
}

# python::make_venv VENV: creates an environment with pip: the bundle's wheel or, for the builder of an
# image, which has no bundle, that of ensurepip. Images of Debian and Ubuntu lack ensurepip.
python::make_venv() {
  local venv="$1" argv=("$BASE_PYTHON" -m venv) wheels=("$BUNDLE_DIR"/requirements/pip-*.whl)
  STEP_LOG="$LOG_DIR/venv.log"
  : >"$STEP_LOG"
  if [[ -e ${wheels[0]} ]]; then
    argv+=(--without-pip)
  elif ! python::has_ensurepip; then
    python::install_ensurepip || return
  fi
  if ! "${argv[@]}" "$venv" >>"$STEP_LOG" 2>&1; then
    log::error "$CURRENT_STEP" "$BASE_PYTHON -m venv failed"
    return 1
  fi
  if [[ -e ${wheels[0]} ]] && ! "$venv/bin/python" "${wheels[0]}/pip" install --no-input \
    --disable-pip-version-check --no-index --no-deps "${wheels[0]}" >>"$STEP_LOG" 2>&1; then
    log::error "$CURRENT_STEP" "${wheels[0]##*/} could not be installed"
    return 1
  fi
}

python::has_ensurepip() {
  "$BASE_PYTHON" -I -c 'import ensurepip' 2>/dev/null
}

python::install_ensurepip() {
  if system::owns apt-get; then
    log::info "$CURRENT_STEP" "$BASE_PYTHON has no ensurepip; installing python3-venv"
    STEP_LOG="$LOG_DIR/apt.log"
    : >"$STEP_LOG"
    if apt::install python3-venv; then
      return 0
    fi
  fi
  log::error "$CURRENT_STEP" "$BASE_PYTHON has no ensurepip; choose an image with Python 3.11 to" \
    "3.13 and python3-venv"
  return 1
}
