#!/usr/bin/env bats
# The interpreter where the image has none baked in: the system's Python, venv and pip stand in.

load helper

# A python3 whose `venv` makes an environment with a recording pip; everything else is the real one.
setup() {
  vm::make
  rm -rf "$OUTLAST_ROOT/opt"
  VENV="$OUTLAST_ROOT/var/lib/outlast/venv"
  command_in "$OUTLAST_ROOT/venv-python" "
if [[ \$1 == -m ]]; then
  echo \"\$*\" >>'$OUTLAST_ROOT/pip'
  echo 'a line of pip'
  if [[ \$3 == download ]]; then
    while [[ \$1 != --dest ]]; do shift; done
    mkdir -p \"\$2\" && touch \"\$2/a.whl\"
  elif [[ ! -e \${*: -1}/a.whl ]]; then
    exit 1
  fi
  exit \"\$(<'$OUTLAST_ROOT/pip-rc')\"
elif [[ \$1 == *.whl/pip ]]; then
  echo \"\$*\" >>'$OUTLAST_ROOT/pip-wheel'
  exit 0
fi
exec '$PYTHON' \"\$@\""
  command_in "$OUTLAST_ROOT/bin/python3" "
if [[ \$1 == -m && \$2 == venv ]]; then
  echo \"\$*\" >>'$OUTLAST_ROOT/venvs'
  venv=\"\${*: -1}\"
  mkdir -p \"\$venv/bin\" && cp '$OUTLAST_ROOT/venv-python' \"\$venv/bin/python\"
else
  exec '$PYTHON' \"\$@\"
fi"
  echo 0 >"$OUTLAST_ROOT/pip-rc"
}

@test "the bundle's requirements are installed with hashes, once" {
  run -0 vm::boot
  grep -qx -- "-m pip download --require-hashes --no-input .*/requirements/vm.txt --dest .*" "$OUTLAST_ROOT/pip"
  grep -qx -- "-m pip install --require-hashes --no-input .*/vm.txt --no-index --find-links .*" "$OUTLAST_ROOT/pip"
  [[ -e "$OUTLAST_ROOT/seen.json" ]]
  run -0 vm::boot
  [[ "$(wc -l <"$OUTLAST_ROOT/pip")" == 2 ]]
  said "$VENV is complete"
}

@test "pip is the bundle's wheel; a Python without ensurepip asks neither apt nor an index for it" {
  local bundle wheel=requirements/pip-1-py3-none-any.whl
  bundle="$(object experiments/digits/bundles/bundle.zip)"
  "$PYTHON" -c 'import sys, zipfile
zipfile.ZipFile(sys.argv[1], "a").writestr(sys.argv[2], "pip")' "$bundle" "$wheel"
  metadata attributes/outlast-bundle-sha256 "$(sha256sum <"$bundle" | head -c 64)"
  command_in "$OUTLAST_ROOT/bin/apt-get" "touch '$OUTLAST_ROOT/apt'"
  sed -i "2i [[ \"\$*\" == *ensurepip* ]] \&\& exit 1" "$OUTLAST_ROOT/bin/python3"
  run -0 vm::boot
  [[ ! -e "$OUTLAST_ROOT/apt" ]]
  grep -qx -- "-m venv --without-pip $VENV" "$OUTLAST_ROOT/venvs"
  grep -qx -- ".*/$wheel/pip install --no-input .* --no-index --no-deps .*/$wheel" "$OUTLAST_ROOT/pip-wheel"
}

@test "another machine installs the packages that were kept, and asks no index" {
  run -0 vm::boot
  [[ -s "$(echo "$CLOUD"/objects/experiments%2Fdigits%2Fenvironments%2Fvm-*.zip)" ]]
  rm -rf "$VENV" "$OUTLAST_ROOT/pip"
  run -0 vm::boot
  [[ "$(wc -l <"$OUTLAST_ROOT/pip")" == 1 ]]
  grep -q -- "--no-index" "$OUTLAST_ROOT/pip"
  said "the packages are in the bucket already"
}

@test "packages that were kept and do not install are fetched again" {
  run -0 vm::boot
  local kept
  kept="$(echo "$CLOUD"/objects/experiments%2Fdigits%2Fenvironments%2Fvm-*.zip)"
  echo damaged >"$kept"
  rm -rf "$VENV" "$OUTLAST_ROOT/pip"
  run -0 vm::boot
  grep -q "pip download" "$OUTLAST_ROOT/pip"
  [[ -e "$VENV/.complete" ]]
}

@test "packages that cannot be kept end no boot" {
  fault POST 'environments' 403 -1
  run -0 vm::boot
  said "the packages were not kept \(status 403\)"
  [[ -e "$VENV/.complete" ]]
}

@test "pip's own environment reaches it" {
  echo "echo \"\$PIP_NO_INDEX \$PIP_FIND_LINKS\" >>'$OUTLAST_ROOT/pip'" |
    sed -i '2r /dev/stdin' "$OUTLAST_ROOT/venv-python"
  PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels run -0 vm::boot
  grep -qx '1 /wheels' "$OUTLAST_ROOT/pip"
}

@test "an environment whose build was interrupted is built again" {
  mkdir -p "$VENV/bin"
  touch "$VENV/leftover"
  cp "$OUTLAST_ROOT/venv-python" "$VENV/bin/python"
  run -0 vm::boot
  [[ ! -e "$VENV/leftover" ]]
  [[ -e "$VENV/.complete" ]]
}

@test "an environment of other requirements is built again" {
  run -0 vm::boot
  echo of-another-bundle >"$VENV/.complete"
  rm "$OUTLAST_ROOT/pip"
  run -0 vm::boot
  [[ "$(wc -l <"$OUTLAST_ROOT/pip")" == 1 ]]
}

@test "a pip that fails is tried again, then ends the boot with its last lines" {
  echo 3 >"$OUTLAST_ROOT/pip-rc"
  run -1 vm::boot
  [[ "$(wc -l <"$OUTLAST_ROOT/pip")" == 3 ]]
  local end
  end="$(object "$RECORD.end.json")"
  is_record BootEnd "$end"
  [[ "$(json "$end" step)" == make-interpreter ]]
  [[ "$(json "$end" message)" == "pip could not install requirements/vm.txt"*"a line of pip" ]]
  [[ ! -e "$VENV/.complete" ]]
}

@test "a Python that does not fit is refused with its version" {
  local name
  for name in python3 python3.13 python3.12 python3.11; do
    command_in "$OUTLAST_ROOT/bin/$name" "
if [[ \$1 == --version ]]; then echo 'Python 3.9.2'; else exit 1; fi"
  done
  run -1 vm::boot
  [[ "$(json "$(object "$RECORD.end.json")" message)" == "python3: Python 3.9.2, "*"must be 3.11 to 3.13;"* ]]
}

@test "a system outside of this VM gets no packages" {
  mkdir "$BATS_TEST_TMPDIR/outside"
  command_in "$BATS_TEST_TMPDIR/outside/apt-get" "touch '$OUTLAST_ROOT/apt'"
  PATH="$PATH:$BATS_TEST_TMPDIR/outside"
  sed -i "2i [[ \"\$*\" == *ensurepip* ]] \&\& exit 1" "$OUTLAST_ROOT/bin/python3"
  run -1 vm::boot
  [[ ! -e "$OUTLAST_ROOT/apt" ]]
  [[ "$(json "$(object "$RECORD.end.json")" message)" == *"choose an image with Python 3.11 to 3.13 and python3-venv"* ]]
}

@test "kept packages that are larger unpacked than they are do not fill the disk" {
  run -0 vm::boot
  local kept
  kept="$(echo "$CLOUD"/objects/experiments%2Fdigits%2Fenvironments%2Fvm-*.zip)"
  python3 -c 'import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("a-1.0-py3-none-any.whl", bytes(50_000_000))' "$kept"
  rm -rf "$VENV" "$OUTLAST_ROOT/pip"
  run -0 vm::boot
  [[ "$(wc -l <"$OUTLAST_ROOT/pip")" == 2 ]]
  [[ "$(find "$OUTLAST_ROOT" -name '*.whl' -size +1M)" == "" ]]
}
