#!/usr/bin/env bash
# Makes build/deb/hcache_VERSION_ARCH.deb of the built program, and judges it with lintian (make deb).
# Needs the packages debhelper, dpkg-dev and lintian.
#   tools/deb.sh --check   installs that file in a bare Debian (debootstrap, as root), looks at what is
#                          there, runs the program as the package's user, and removes it again
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

check() {
    local deb
    deb=$(ls build/deb/hcache_*.deb)
    bare=$(mktemp -d)
    chmod 755 "$bare"
    trap 'umount "$bare/proc" 2>/dev/null || true; rm -rf "$bare"' EXIT
    inside() { chroot "$bare" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }
    is() { # is NAME COMMAND...
        local name=$1
        shift
        if "$@" >"$bare/out" 2>&1; then echo "ok - $name"; else echo "not ok - $name"; sed 's/^/# /' "$bare/out"; failed=1; fi
    }
    failed=0
    debootstrap --variant=minbase bookworm "$bare" >build/deb/debootstrap.log
    cp /etc/resolv.conf "$bare/etc/"
    printf '#!/bin/sh\nexit 101\n' >"$bare/usr/sbin/policy-rc.d"
    chmod 755 "$bare/usr/sbin/policy-rc.d"
    mount -t proc proc "$bare/proc"
    cp "$deb" "$bare/hcache.deb"
    cp -rL models/demo "$bare/tmp/demo"
    is "it installs, with all that it depends on" inside apt-get install -y -q --no-install-recommends /hcache.deb
    is "the program runs" inside hcache --version
    is "it has a user of its own" inside getent passwd hcache
    is "models have a folder of that user's" inside sh -c 'test "$(stat -c %U:%a /var/lib/hcache/models)" = hcache:750'
    is "the service is enabled" test -L "$bare/etc/systemd/system/multi-user.target.wants/hcache.service"
    is "it starts only with a model" grep -q '^ConditionPathExists=/var/lib/hcache/models/default' "$bare/lib/systemd/system/hcache.service"
    inside cp -r /tmp/demo /var/lib/hcache/models/demo
    inside ln -s demo /var/lib/hcache/models/default
    inside chown -R hcache: /var/lib/hcache/models
    is "its user answers with that model, and saves" inside setpriv --reuid hcache --regid hcache --clear-groups \
        hcache run /var/lib/hcache/models/default --prompt Hello --max-tokens 2 --store /var/lib/hcache/store
    is "it goes, and keeps models" inside apt-get remove -y -q hcache
    is "the model is still there" test -e "$bare/var/lib/hcache/models/demo/config.json"
    is "purged, nothing is left" inside sh -c 'apt-get purge -y -q hcache && test ! -e /var/lib/hcache && test ! -e /etc/default/hcache'
    return $failed
}
if [ "${1:-}" = --check ]; then
    check
    exit
fi
for tool in dh dpkg-buildpackage lintian; do
    command -v "$tool" >/dev/null || { echo "deb: $tool is missing: apt-get install debhelper dpkg-dev lintian" >&2; exit 1; }
done
version=$(build/hcache --version | sed -n 's/^hcache \([0-9][0-9.]*\).*/\1/p')
date=$(date -R -u -d "@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}")
rm -rf build/deb
mkdir -p build/deb/hcache
cp -r packaging/debian build/deb/hcache/debian
chmod 755 build/deb/hcache/debian/rules
printf 'hcache (%s) unstable; urgency=medium\n\n  * See the changes in CHANGELOG.md.\n\n -- hcache maintainers <maintainers@hcache.example>  %s\n' \
    "$version" "$date" >build/deb/hcache/debian/changelog
log=build/deb/build.log
(cd build/deb/hcache && ROOT=$root dpkg-buildpackage -b -us -uc -d) >"$log" 2>&1 || { tail -30 "$log" >&2; exit 1; }
lintian --fail-on error,warning build/deb/hcache_*.deb
echo "build/deb/$(cd build/deb && ls hcache_*.deb)"
