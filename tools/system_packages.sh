#!/usr/bin/env bash
# Installs Debian packages for the tests, as root or with passwordless sudo. Otherwise it prints the command to type, and
# which tests are skipped without the packages. Building, training and exporting need none of them.
set -euo pipefail

missing=()
wants() { # package, test command...
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}
wants libgtest-dev test -e /usr/include/gtest/gtest.h
wants stockfish test -x /usr/games/stockfish -o -n "$(command -v stockfish || true)"
wants clang-format command -v clang-format
wants ccache command -v ccache
wants g++-aarch64-linux-gnu command -v aarch64-linux-gnu-g++
wants qemu-user command -v qemu-aarch64
wants chromium command -v chromium
wants chromium-driver command -v chromedriver

if [ ${#missing[@]} -eq 0 ]; then
    echo "  already installed: GoogleTest, Stockfish, clang-format, ccache, Chromium, compiler and emulator for arm64"
    exit 0
fi
line="apt-get update && apt-get install -y ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then as_root=(sudo -n); fi
if command -v apt-get >/dev/null && { [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null; }; then
    echo "  $line"
    if "${as_root[@]}" apt-get update -qq >/dev/null &&
        DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq "${missing[@]}" >/dev/null; then
        exit 0
    fi
    echo "  apt-get failed: run this command yourself to see the reason"
else
    echo "  installing needs root or passwordless sudo. Run:"
    echo "    sudo sh -c '$line'"
fi
for package in "${missing[@]}"; do
    case $package in
    libgtest-dev) echo "  without libgtest-dev the C++ tests are skipped" ;;
    stockfish) echo "  without stockfish the tests against a real engine are skipped" ;;
    clang-format) echo "  without clang-format the C++ format check is skipped" ;;
    g++-aarch64-linux-gnu | qemu-user) echo "  without $package the NEON code of examples/engine is not tested" ;;
    chromium-driver) echo "  without chromium and chromium-driver no page is opened in a browser" ;;
    ccache) echo "  without ccache rebuilds take longer" ;;
    esac
done
