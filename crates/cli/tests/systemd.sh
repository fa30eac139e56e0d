# The unit under a systemd of its own: boot, kill, a rendezvous that is away, settings that make no sense, stop. Each row
# that holds prints its name. Runs as `sh systemd.sh COPYRPC UNIT FOLDER`, as root.
set -eu
copyrpc=$1
unit=$2
folder=$3

# What runs in the namespaces begins here.
if [ "${4:-}" = inside ]; then
    mount -t tmpfs none /run
    mount -t tmpfs none /etc/default
    umount -R /sys/fs/cgroup
    mkdir -p /run/units /run/lock
    sed "s|^ExecStart=copyrpc|ExecStart=$copyrpc|" "$unit" >/run/units/copyrpc@.service
    # None of the machine's own units.
    for target in sysinit basic shutdown umount network-online rdma-hw copyrpc-boot; do
        printf '[Unit]\nDefaultDependencies=no\n' >/run/units/$target.target
    done
    printf 'Wants=copyrpc@root.service\n' >>/run/units/copyrpc-boot.target
    printf '[Slice]\n[Unit]\nDefaultDependencies=no\n' >/run/units/system.slice
    printf 'COPYRPC_NIC=soft\nCOPYRPC_SOFT_FABRIC=systemd\n' >/etc/default/copyrpc
    export SYSTEMD_UNIT_PATH=/run/units container=copyrpc
    exec /usr/lib/systemd/systemd --system --unit=copyrpc-boot.target --log-target=console --show-status=no
fi

groups=$(findmnt -t cgroup2 -n -o TARGET | head -n 1)/copyrpc-systemd-$$
mkdir "$groups"
manager=
end() {
    # The end of the first process of a PID namespace is that of all.
    [ -z "$manager" ] || kill -9 "$manager" 2>/dev/null || true
    wait || true
    looks=0
    until find "$groups" -depth -type d -exec rmdir {} + 2>/dev/null || [ $looks -gt 100 ]; do
        looks=$((looks + 1))
        sleep 0.1
    done
}
trap end EXIT

(
    echo 0 >"$groups/cgroup.procs"
    exec unshare --pid --fork --kill-child --mount --mount-proc --uts --ipc --cgroup \
        sh "$0" "$copyrpc" "$unit" "$folder" inside
) </dev/null >"$folder/systemd.log" 2>&1 &
outer=$!

# The number of looks bounds each wait.
until_true() {
    looks=0
    until "$@" >"$folder/last" 2>&1; do
        looks=$((looks + 1))
        if [ $looks -gt 600 ]; then echo "never: $*"; cat "$folder/last" "$folder/systemd.log"; exit 1; fi
        sleep 0.1
    done
}
has_begun() { manager=$(cat /proc/$outer/task/$outer/children) && manager=${manager% } && [ -n "$manager" ]; }
until_true has_begun

within() { nsenter --target "$manager" --mount --pid "$@"; }
of() { within systemctl show --value --property "$2" "copyrpc@$1.service"; }
is() { [ "$(of "$1" "$2")" = "$3" ]; }
answers() { within env COPYRPC_RUNTIME_DIR=/run/copyrpc-root "$copyrpc" ping 0 --count 1; }
restarted() { [ "$(of root NRestarts)" -ge "$1" ] && is root ActiveState active; }

until_true is root ActiveState active
answers >"$folder/last" 2>&1
of root After | grep -q rdma-hw.target
echo "boot: it is active, and takes calls"

first=$(of root MainPID)
within kill -9 "$first"
until_true restarted 1
answers >"$folder/last" 2>&1
[ "$(of root MainPID)" != "$first" ]
echo "kill: it is started again"

within systemctl stop copyrpc@root.service
is root ActiveState inactive && is root Result success && is root ExecMainStatus 0
echo "stop: it ends in order"

within systemctl start copyrpc@root.service
within env COPYRPC_RUNTIME_DIR=/run/copyrpc-root "$copyrpc" drain >"$folder/last" 2>&1
until_true is root ActiveState inactive
is root Result success && is root NRestarts 0
# STOPPING=1 ends the active state while the process runs; without it the end of the process does.
[ "$(of root ActiveExitTimestampMonotonic)" -lt "$(of root ExecMainExitTimestampMonotonic)" ]
echo "drain: it says that it stops, and is left alone"

within sh -c 'printf "COPYRPC_RANK=1\nCOPYRPC_SIZE=2\nCOPYRPC_RENDEZVOUS=127.0.0.1:1\nCOPYRPC_BOOTSTRAP_TIMEOUT=1s\n
COPYRPC_SECRET_FILE=/run/secret\n" >>/etc/default/copyrpc && umask 077 && head -c 32 /dev/urandom >/run/secret'
within systemctl start --no-block copyrpc@root.service
tried() { [ "$(of root NRestarts)" -ge 2 ] && is root ExecMainStatus 75; }
until_true tried
within systemctl stop copyrpc@root.service
echo "reset: what may come by itself is waited for, again and again"

within sh -c 'echo COPYRPC_DEPTH=many >>/etc/default/copyrpc'
within systemctl reset-failed copyrpc@root.service
! within systemctl start copyrpc@root.service >"$folder/last" 2>&1
is root ActiveState failed && is root ExecMainStatus 2 && is root NRestarts 0
echo "settings that make no sense: it is left alone"
