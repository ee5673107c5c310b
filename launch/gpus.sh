# GPUs as the driver's tool names them: sourced by launch/quickstart.sh.

# num_gpus: GPUs that a program started from here sees; 0 without a driver.
num_gpus() {
  local found visible
  found=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ') || true
  if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then # which the tool does not look at
    IFS=, read -ra visible <<<"$CUDA_VISIBLE_DEVICES"
    [ ${#visible[@]} -ge "$found" ] || found=${#visible[@]}
    [ "${visible[0]:-}" != -1 ] || found=0
  fi
  echo "$found"
}

# gpu_architectures: those of the GPUs, as CMake writes them, "80;90a" (Hopper's own instructions need the letter).
# Nothing where there is no GPU, or one older than 80, for which there is no code.
gpu_architectures() {
  [ "$(num_gpus)" -gt 0 ] || return 0
  nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d '. ' | sort -nu |
    awk '$1 < 80 { exit } { list = list (NR > 1 ? ";" : "") ($1 == 90 ? "90a" : $1) } END { if ($1 >= 80) print list }'
}

# built_for BUILD ARCHITECTURES: is the directory configured with CUDA for all of these, or without CUDA for none?
built_for() {
  local build=$1 wanted=$2 configured architecture
  [ -f "$build/build.ninja" ] || return 1
  grep -q -e -DBATON_HAS_CUDA "$build/build.ninja" || { [ -z "$wanted" ]; return; }
  configured=$(sed -n 's/^BATON_CUDA_ARCHITECTURES:[A-Z]*=//p' "$build/CMakeCache.txt")
  for architecture in ${wanted//;/ }; do
    [[ ";$configured;" == *";$architecture;"* ]] || return 1
  done
  [ -n "$wanted" ]
}
