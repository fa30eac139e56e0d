#!/bin/sh
# Installs libcopyrpc_c with its header, and what pkg-config and CMake find it by:
#
#   cargo build --profile dist --locked -p copyrpc-capi
#   PREFIX=$HOME/.local packaging/install-c.sh
#
# PREFIX   /usr/local   where programs find it
# LIBDIR   lib          its folder for libraries, below PREFIX
# DESTDIR               a folder that stands for / while a package is made
# BUILT    target/dist  what cargo has built
set -eu
cd "$(dirname "$0")/.."
prefix="${PREFIX:-/usr/local}"
libdir="${LIBDIR:-lib}"
built="${BUILT:-target/dist}"
root="${DESTDIR:-}$prefix"
version="$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)"
abi="$(sed -n 's/^#define COPYRPC_ABI //p' crates/capi/include/copyrpc.h)"
[ -e "$built/libcopyrpc_c.so" ] || {
    echo "install-c: no libcopyrpc_c.so in $built; run cargo build --profile dist --locked -p copyrpc-capi" >&2
    exit 2
}

install -d "$root/include" "$root/$libdir/pkgconfig" "$root/$libdir/cmake/copyrpc"
install -m 644 crates/capi/include/copyrpc.h "$root/include/copyrpc.h"
# Programs load the name with the ABI, and are linked by the one without.
install -m 755 "$built/libcopyrpc_c.so" "$root/$libdir/libcopyrpc_c.so.$abi"
ln -sf "libcopyrpc_c.so.$abi" "$root/$libdir/libcopyrpc_c.so"
[ ! -e "$built/libcopyrpc_c.a" ] || install -m 644 "$built/libcopyrpc_c.a" "$root/$libdir/libcopyrpc_c.a"

fill() {
    sed -e "s|@prefix@|$prefix|g" -e "s|@libdir@|$libdir|g" -e "s|@version@|$version|g" "$1" >"$2"
}
fill crates/capi/copyrpc.pc.in "$root/$libdir/pkgconfig/copyrpc.pc"
for file in copyrpcConfig copyrpcConfigVersion; do
    fill "crates/capi/cmake/$file.cmake.in" "$root/$libdir/cmake/copyrpc/$file.cmake"
done
