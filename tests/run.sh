#!/usr/bin/env bash
# Installs what the tests need, builds, and runs every test. Arguments go to ctest: tests/run.sh -L unit
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/packages.sh

require_packages "${build_packages[@]}" libgtest-dev libgmock-dev hdf5-tools python3 python3-numpy python3-h5py python3-matplotlib \
  clang-format-14 procps
mkdir -p build-tests
cmake -S . -B build-tests -G Ninja -DBATON_TESTS=ON >build-tests/configure.log 2>&1 ||
  { tail -n 30 build-tests/configure.log >&2; exit 1; }
ninja -C build-tests
# Tests run beside each other: a thread that waits leaves its core to them.
OMP_WAIT_POLICY=passive ctest --test-dir build-tests --output-on-failure -j "$(nproc)" "$@"
