# Two network namespaces with a cable between them: this one has 10.77.0.1, and processes after $there 10.77.0.2. $pids
# are killed at the end. Sourced with the arguments PROGRAM FOLDER.
set -eu
program=$1
folder=$2
pids=
end() {
    for pid in $pids; do kill "$pid" 2>/dev/null || true; done
    for pid in $pids; do wait "$pid" 2>/dev/null || true; done
}
trap end EXIT

unshare -n sleep 300 &
other=$!
pids="$pids $other"
while [ "$(readlink /proc/self/ns/net)" = "$(readlink /proc/$other/ns/net)" ]; do sleep 0.01; done
there="nsenter -t $other -n"
ip link set lo up
$there ip link set lo up
ip link add near type veth peer name far
ip link set far netns $other
ip addr add 10.77.0.1/24 dev near
ip link set near up
$there ip addr add 10.77.0.2/24 dev far
$there ip link set far up
