#!/bin/bash
# install_nsys.sh DIR SUITE: a real nsys for a Debian machine without a GPU, unpacked (not installed) below DIR; prints its path.
# SUITE trixie gives 2023.4.4, bookworm 2022.4.2. Uses the machine's own Debian source with the component non-free added, in
# a private apt state: the system's package state is left alone (installing the package would pull in libcuda1).
set -euo pipefail
dir=$(mkdir -p "$1" && cd "$1" && pwd); suite=$2; nsys=$dir/nsight-systems/target-linux-x64/nsys
[ -x "$nsys" ] && { echo "$nsys"; exit 0; }
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT; mkdir -p "$tmp/lists/partial" "$tmp/parts" "$tmp/deb"
src=$(grep -lE '^Suites:.*(bookworm|trixie)' /etc/apt/sources.list.d/*.sources | head -1)
awk 'BEGIN{RS="";ORS="\n\n"} NR==1' "$src" | sed -E "s/^Suites:.*/Suites: $suite/; s/^Components:.*/Components: non-free/" >"$tmp/parts/nonfree.sources"
apt=(-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$tmp/parts" -o Dir::State::Lists="$tmp/lists" -o APT::Sandbox::User=root)
apt-get "${apt[@]}" -q update >/dev/null
(cd "$tmp/deb" && apt-get "${apt[@]}" -q download nsight-systems nsight-systems-target >/dev/null)
# The importer's own libraries.
dpkg -s libssh-4 libpfm4 >/dev/null 2>&1 || { apt-get -q update >/dev/null; apt-get -q -o DPkg::Lock::Timeout=60 install -y --no-install-recommends libssh-4 libpfm4 >/dev/null; }
for d in "$tmp"/deb/*.deb; do dpkg -x "$d" "$tmp/x"; done
# nsys finds its importer only where both folders stand side by side, and the importer wants libssh under this name.
mkdir -p "$dir/nsight-systems.unfinished"
cp -a "$tmp"/x/usr/lib/x86_64-linux-gnu/nsight-systems/target-linux-x64 "$tmp"/x/usr/lib/nsight-systems/host-linux-x64 "$dir/nsight-systems.unfinished/"
ln -sf /usr/lib/x86_64-linux-gnu/libssh.so.4 "$dir/nsight-systems.unfinished/host-linux-x64/libssh.so"
rm -f "$dir"/nsight-systems.unfinished/host-linux-x64/libQt6WebEngine*.so* "$dir"/nsight-systems.unfinished/host-linux-x64/nsys-ui*
mv "$dir/nsight-systems.unfinished" "$dir/nsight-systems"
echo "$nsys"
