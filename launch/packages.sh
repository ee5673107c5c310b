# Debian packages and mpirun: sourced by launch/quickstart.sh and tests/run.sh.

build_packages=(g++ cmake ninja-build ccache libopenmpi-dev openmpi-bin libboost-program-options-dev libhdf5-dev
  libopenblas-openmp-dev libfmt-dev nlohmann-json3-dev libsentencepiece-dev zlib1g-dev)

# require_packages NAME...: installs what is missing, as root or through sudo; else names it in one line and fails.
require_packages() {
  local missing=() name
  for name in "$@"; do
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    # Without a terminal nobody can give a password.
    if ! sudo -n true 2>/dev/null && ! { [ -t 0 ] && command -v sudo >/dev/null && sudo -v; }; then
      echo "missing packages, to be installed by root: apt-get install ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  echo "installing: ${missing[*]}"
  local log
  log=$(mktemp)
  if ! { "${as_root[@]}" apt-get update -q && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "installing packages failed: ${missing[*]}" >&2
    return 1
  fi
  rm -f "$log"
}

# run_ranks N COMMAND...: mpirun with what a small machine needs: more ranks than cores, and root where we are root.
run_ranks() {
  local n=$1
  shift
  local flags=(--oversubscribe --bind-to none)
  [ "$(id -u)" -eq 0 ] && flags+=(--allow-run-as-root)
  mpirun -np "$n" "${flags[@]}" "$@"
}
