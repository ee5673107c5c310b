#!/usr/bin/env bash
# Installs the packages that are missing, builds, and trains a small GLA model; then shows what it learned. Where the
# driver names GPUs, and nvcc and NCCL are there, it builds for those GPUs and trains on all of them, one rank each;
# elsewhere it builds for the CPU and trains over 4 ranks.
#
#   launch/quickstart.sh            the King James Bible
#   launch/quickstart.sh FILE       any other text, of 256 KiB or more
#
# Exit codes: 0 the model predicts the text better than the byte before it does; 1 it does not; 2 packages or input are
# missing; others are those of a failed build or of baton.
set -euo pipefail
caller_dir=$PWD
cd "$(dirname "$0")/.."
source launch/packages.sh
source launch/gpus.sh

min_bytes=$((256 * 1024)) # of less text, the 5% held out are too few to judge by
config=configs/gla-tiny.cfg
python=/usr/bin/python3 # the one that has the packages

fail() {
  echo "quickstart: $2" >&2
  exit "$1"
}

[ $# -le 1 ] || fail 2 "one FILE at most, but $# were given"
packages=("${build_packages[@]}" python3 python3-matplotlib)
if [ $# -eq 0 ]; then
  packages+=(bible-kjv bible-kjv-text)
  data_dir=data run_dir=runs/gla-tiny
else
  case $1 in /*) file=$1 ;; *) file=$caller_dir/$1 ;; esac
  [ -f "$file" ] && [ -r "$file" ] || fail 2 "$1: must be a text file that can be read"
  num_bytes=$(stat -L -c %s "$file")
  [ "$num_bytes" -ge "$min_bytes" ] || fail 2 "$1: must hold at least $min_bytes bytes of text, but has $num_bytes"
  name=$(basename "$file")
  name=${name%.*}
  name=${name//[^A-Za-z0-9_-]/_}
  data_dir=data/${name:-text} run_dir=runs/gla-tiny-${name:-text}
fi
require_packages "${packages[@]}" || exit 2

configure() {
  mkdir -p build
  cmake -S . -B build -G Ninja "$@" >build/configure.log 2>&1 || { tail -n 30 build/configure.log >&2; exit 1; }
}

num_ranks=4 compilers=2 # a compiler may take 1 GB of memory
architectures=$(gpu_architectures)
if [ -z "$architectures" ]; then
  built_for build "" || configure -DBATON_CUDA=OFF
else
  built_for build "$architectures" || configure -DBATON_CUDA=AUTO "-DBATON_CUDA_ARCHITECTURES=$architectures"
  if built_for build "$architectures"; then
    num_ranks=$(num_gpus) compilers=8
  else
    echo "quickstart: nvcc or NCCL is not found, so the GPUs are not used"
  fi
fi
cores=$(nproc)
ninja -C build -j "$((cores < compilers ? cores : compilers))" baton

if [ $# -eq 1 ]; then
  "$python" tools/prepare_text.py "$file" "$data_dir"
elif [ ! -f "$data_dir/train.txt" ]; then
  bible -f Gen1:1-Rev22:21 </dev/null | "$python" tools/prepare_text.py - "$data_dir"
fi

options=(--config "$config" --data.train "$data_dir/train.txt" --data.val "$data_dir/val.txt" --run.dir "$run_dir")
if [ -d "$run_dir" ]; then # a run begins in a directory of its own; the last one is kept
  rm -rf "$run_dir.previous"
  mv "$run_dir" "$run_dir.previous"
fi
run_ranks "$num_ranks" build/baton train "${options[@]}"

last=$(tail -n 1 "$run_dir/metrics.jsonl")
step=$(sed -n 's/.*"step":\([0-9]*\).*/\1/p' <<<"$last")
val_loss=$(sed -n 's/.*"val_loss":\([0-9.e+-]*\).*/\1/p' <<<"$last")
entropy=$(cat "$data_dir/entropy.txt")
checkpoint=$run_dir/checkpoints/step-$(printf %08d "$step")
picture=$("$python" tools/plot_loss.py "$run_dir" --line "$entropy" "a byte given the one before")

printf "\nA sample:\n"
build/baton sample "${options[@]}" --checkpoint.load "$checkpoint" --sample.prompt $'\n' --sample.tokens 400 \
  --sample.temperature 0.7 --run.threads 1 # steps too small to share out
cat <<END

validation loss      $(printf %.4f "${val_loss:-nan}") nats a byte
entropy of the text  $entropy nats a byte, given the one before
checkpoint           $checkpoint
metrics              $run_dir/metrics.jsonl
loss curve           $picture
END
awk -v loss="${val_loss:-inf}" -v bound="$entropy" 'BEGIN { exit !(loss + 0 < bound + 0) }' ||
  fail 1 "the validation loss is not under the entropy: the model has learned no more than pairs of bytes"
