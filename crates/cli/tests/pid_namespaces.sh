# Clients, daemons and what an operator asks, with the other end in another namespace of each kind. Each row that holds
# prints its name. Runs as `sh pid_namespaces.sh COPYRPC FOLDER`, as root of the machine or of a user namespace.
set -eu
copyrpc=$1
folder=$2
pids=
end() {
    for pid in $pids; do kill "$pid" 2>/dev/null || true; done
    for pid in $pids; do wait "$pid" 2>/dev/null || true; done
}
trap end EXIT
export COPYRPC_RUNTIME_DIR="$folder/rt" COPYRPC_JOB=matrix COPYRPC_NIC=soft COPYRPC_SOFT_FABRIC="matrix-$$"
other="unshare --pid --fork --kill-child --mount-proc"

# The number of looks bounds each wait.
until_true() {
    looks=0
    until "$@" >"$folder/last" 2>&1; do
        looks=$((looks + 1))
        if [ $looks -gt 300 ]; then echo "never: $*"; cat "$folder"/*.log "$folder/last"; exit 1; fi
        sleep 0.1
    done
}
# A command that fails is no row of the matrix.
row() {
    name=$1
    shift
    if ! "$@" >"$folder/last" 2>&1; then echo "$name: $*"; cat "$folder/last" "$folder"/*.log; exit 1; fi
}
says() { grep -q "$1" "$folder/last" || { echo "no '$1' in"; cat "$folder/last"; exit 1; }; }
ended() { ! kill -0 "$1" 2>/dev/null; }

# A daemon here, and clients elsewhere.
"$copyrpc" daemon 2>"$folder/here.log" &
here=$!
pids="$pids $here"
until_true "$copyrpc" ping 0 --count 1
row pid $other "$copyrpc" ping 0 --count 3
echo "client in a PID namespace"
row user unshare --user "$copyrpc" ping 0 --count 3
echo "client in a user namespace without users"
row ipc unshare --ipc --uts --mount "$copyrpc" ping 0 --count 3
echo "client in an IPC, a UTS and a mount namespace"
row cgroup unshare --cgroup "$copyrpc" ping 0 --count 3
echo "client in a cgroup namespace"
row net unshare --net "$copyrpc" ping 0 --count 3
echo "client in a network namespace"
row time unshare --time --monotonic 86400 --boottime 86400 --fork "$copyrpc" ping 0 --count 3
echo "client in a time namespace"
row tmp unshare --mount sh -ec '
    mount -t tmpfs none /mnt && mkdir /mnt/rt && mount --bind "$1/rt" /mnt/rt
    cp "$0" /mnt/copyrpc && mount -t tmpfs none "$1"
    COPYRPC_RUNTIME_DIR=/mnt/rt /mnt/copyrpc ping 0 --count 3' "$copyrpc" "$folder"
echo "client with a private /tmp and the runtime folder at another place"
row drain unshare --time --boottime 5000 --fork "$copyrpc" drain
until_true ended $here
echo "a daemon that another time namespace sees is drained from there"
if grep -q "did not become clients" "$folder/here.log"; then cat "$folder/here.log"; exit 1; fi

# A daemon elsewhere, and everybody else here.
$other "$copyrpc" daemon 2>"$folder/there.log" &
there=$!
pids="$pids $there"
until_true "$copyrpc" ping 0 --count 1
echo "daemon in a PID namespace"
# A process outside is not in the table of the daemon: its user is known, its number is not, its death is noticed.
"$copyrpc" ping 0 --count 1000000 >/dev/null 2>&1 &
far=$!
pids="$pids $far"
listed() { "$copyrpc" clients --json | grep -c '"pid": null' | grep -q "$1"; }
until_true listed 2
"$copyrpc" clients --json >"$folder/last"
says "\"uid\": $(id -u)"
kill -9 $far
until_true listed 1
echo "the user of a client outside is known, and its death"
row stat "$copyrpc" stat
says serving
row doctor sh -c '"$0" doctor || true' "$copyrpc"
says "serving, process 1 of another PID namespace"
row clean "$copyrpc" clean
says "nothing of a dead daemon is left"
row hidden unshare --mount sh -c 'mount -t tmpfs none /proc && exec "$0" clean' "$copyrpc"
says "nothing of a dead daemon is left"
row time unshare --time --boottime 5000 --fork "$copyrpc" clean
says "nothing of a dead daemon is left"
row ping "$copyrpc" ping 0 --count 1
if "$copyrpc" drain >"$folder/last" 2>&1; then echo "drained what it cannot see"; exit 1; fi
says "lives in another PID namespace, as process 1 there; drain it there, or stop its container"
echo "stat, doctor, clean and drain tell the same of it"
kill -9 $there
crashed() { "$copyrpc" stat | grep -q crashed; }
until_true crashed
row clean "$copyrpc" clean
says "removed .*matrix.sock"
echo "and of its death"

# Daemons of one job, each in a PID namespace, by each NIC that they may use on one host.
head -c 32 /dev/urandom >"$folder/secret"
chmod 600 "$folder/secret"
mkdir -p "$folder/meet"
export COPYRPC_SIZE=2 COPYRPC_RENDEZVOUS="$folder/meet" COPYRPC_SECRET_FILE="$folder/secret"
export COPYRPC_HEARTBEAT_INTERVAL=50ms COPYRPC_SUSPECT_AFTER=500ms COPYRPC_DEAD_AFTER=1s
ip link set lo up 2>/dev/null || true
for nic in soft hosts tcp; do
    export COPYRPC_NIC=$nic
    # A killed daemon of the NIC before may hold its place for a moment longer.
    rm -rf "$folder/meet"
    mkdir "$folder/meet"
    COPYRPC_RANK=0 COPYRPC_RUNTIME_DIR="$folder/r0" $other "$copyrpc" daemon 2>"$folder/0.log" &
    zero=$!
    COPYRPC_RANK=1 COPYRPC_RUNTIME_DIR="$folder/r1" $other "$copyrpc" daemon 2>"$folder/1.log" &
    one=$!
    pids="$pids $zero $one"
    until_true env COPYRPC_RUNTIME_DIR="$folder/r0" "$copyrpc" ping 1 --count 3
    until_true env COPYRPC_RUNTIME_DIR="$folder/r1" "$copyrpc" ping 0 --count 3
    # A second one of rank 1 is refused: the first lives, though nobody here sees it.
    if COPYRPC_RANK=1 COPYRPC_RUNTIME_DIR="$folder/r2" timeout 20 "$copyrpc" daemon >"$folder/last" 2>&1; then
        echo "two daemons of a rank"
        exit 1
    fi
    says "rank 1 of 2 is taken\|holds rank 1\|already"
    kill -9 $one
    down() { COPYRPC_RUNTIME_DIR="$folder/r0" "$copyrpc" peers --json | grep -q '"state": "down"'; }
    until_true down
    kill -9 $zero
    until_true ended $zero
    echo "daemons of NIC $nic in two PID namespaces"
done

# Daemons of one job, one of them in namespaces of all other kinds than PID: its clock, its host name, its files.
other="unshare --ipc --uts --mount --cgroup --time --monotonic 86400 --boottime 86400 --fork --kill-child"
pair() {
    rm -rf "$folder/meet" "$folder/r0" "$folder/r1"
    mkdir -p "$folder/meet"
    COPYRPC_RANK=0 COPYRPC_RUNTIME_DIR="$folder/r0" "$copyrpc" daemon 2>"$folder/0.log" &
    zero=$!
    COPYRPC_RANK=1 COPYRPC_RUNTIME_DIR="$folder/r1" $other "$copyrpc" daemon 2>"$folder/1.log" &
    one=$!
    pids="$pids $zero $one"
}
meets() {
    until_true env COPYRPC_RUNTIME_DIR="$folder/r0" "$copyrpc" ping 1 --count 3
    until_true env COPYRPC_RUNTIME_DIR="$folder/r1" "$copyrpc" ping 0 --count 3
    kill -9 $one
    until_true down
}
over() {
    kill -9 $zero $one 2>/dev/null || true
    until_true ended $zero
}
for nic in soft hosts tcp; do
    export COPYRPC_NIC=$nic
    pair
    meets
    over
    echo "daemons of NIC $nic, one in time, IPC, UTS, mount and cgroup namespaces"
done
for nic in soft hosts; do
    export COPYRPC_NIC=$nic
    other="unshare --user --map-root-user --fork --kill-child"
    pair
    meets
    over
    echo "daemons of NIC $nic, one in a user namespace"
done
# Without a common loopback NIC soft reaches nobody, and says so; both serve their own nodes.
export COPYRPC_NIC=soft
other="unshare --net --fork --kill-child"
pair
unheard() { grep -q "no heartbeat of rank $1" "$folder/$2.log"; }
until_true unheard 1 0
until_true unheard 0 1
row own env COPYRPC_RUNTIME_DIR="$folder/r0" "$copyrpc" ping 0
row own env COPYRPC_RUNTIME_DIR="$folder/r1" "$copyrpc" ping 1
over
echo "daemons of NIC soft in two network namespaces say so"

# NIC soft finds ports by user id and fabric: where they differ the first daemon that learns it says so, before any serves.
export COPYRPC_NIC=soft COPYRPC_BOOTSTRAP_TIMEOUT=5s
refuses() {
    mkdir "$folder/$1"
    export COPYRPC_RENDEZVOUS="$folder/$1"
    shift
    COPYRPC_RANK=0 COPYRPC_RUNTIME_DIR="$folder/r0" "$copyrpc" daemon 2>"$folder/0.log" &
    zero=$!
    pids="$pids $zero"
    if COPYRPC_RANK=1 COPYRPC_RUNTIME_DIR="$folder/r1" "$@" "$copyrpc" daemon 2>"$folder/1.log"; then
        echo "daemons that cannot meet: $*"
        exit 1
    fi
    wait $zero || true
    cat "$folder/0.log" "$folder/1.log" >"$folder/last"
}
refuses fabrics env COPYRPC_SOFT_FABRIC=other
says "soft@[0-9]*.other.*set COPYRPC_NIC=hosts"
echo "daemons of NIC soft and two fabrics say so"
refuses users unshare --user --map-user=4711 --map-group=4711
says "soft@4711.*set COPYRPC_NIC=hosts"
echo "daemons of NIC soft and two user ids say so"
