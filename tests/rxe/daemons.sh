# Daemons and the benchmark on two ports of soft-RoCE: answers are checked, packets are lost, the link goes down and up, a
# peer is killed and comes back. Runs in the guest: tests/rxe/run bash tests/rxe/daemons.sh COPYRPC
set -eu
copyrpc=$1
folder="$(mktemp -d)"
modprobe sch_netem

head -c 32 /dev/urandom >"$folder/secret"
chmod 600 "$folder/secret"
export HOME="$folder" COPYRPC_NIC=ibverbs COPYRPC_SIZE=2 COPYRPC_RENDEZVOUS=127.0.0.1:7000
export COPYRPC_SECRET_FILE="$folder/secret" COPYRPC_CALL_TIMEOUT=8s
export COPYRPC_HEARTBEAT_INTERVAL=200ms COPYRPC_SUSPECT_AFTER=3s COPYRPC_DEAD_AFTER=6s
declare -A daemon

start() { # RANK
    COPYRPC_RANK=$1 COPYRPC_NIC_DEVICE=rxe$1 COPYRPC_RUNTIME_DIR="$folder/$1" "$copyrpc" daemon 2>>"$folder/log$1" &
    daemon[$1]=$!
}

ping() { # FROM TO COUNT
    COPYRPC_RUNTIME_DIR="$folder/$1" "$copyrpc" ping "$2" --count "$3" >"$folder/ping" 2>&1
}

# The number of looks bounds the wait.
reach() { # FROM TO
    local look
    for look in {1..100}; do
        if ping "$1" "$2" 3; then return; fi
        kill -0 "${daemon[0]}" "${daemon[1]}" 2>/dev/null || break
        sleep .3
    done
    cat "$folder/ping" "$folder"/log*
    exit 1
}

sent() {
    cat /sys/class/net/rdma0/statistics/tx_packets
}

start 0
start 1
before=$(sent)
reach 0 1
reach 1 0
# Else faults of the link would prove nothing.
test "$(sent)" -gt "$before"
echo "daemons: reached over rxe0 and rxe1"

tc qdisc add dev rdma0 root netem loss 2%
tc qdisc add dev rdma1 root netem loss 2%
reach 0 1
ping 0 1 200 || { cat "$folder/ping"; exit 1; }
tc qdisc show dev rdma0
tc -s qdisc show dev rdma0 | grep -E 'dropped [1-9]' || { echo "nothing was lost"; exit 1; }
tc qdisc del dev rdma0 root
tc qdisc del dev rdma1 root
echo "daemons: 200 calls although 2 % of all packets were lost each way"

ip link set rdma0 down
if ping 0 1 1; then echo "an answer came over a link that is down"; exit 1; fi
ip link set rdma0 up
ip addr show dev rdma0 | grep -q 10.77.0.1 || ip addr add 10.77.0.1/24 dev rdma0
reach 0 1
reach 1 0
echo "daemons: reached again after the link was down"

kill -KILL "${daemon[1]}"
wait "${daemon[1]}" || true
if ping 0 1 1; then echo "a dead daemon answers"; exit 1; fi
start 1
reach 0 1
reach 1 0
echo "daemons: a killed peer is replaced"

for rank in 0 1; do kill -TERM "${daemon[$rank]}"; done
for rank in 0 1; do wait "${daemon[$rank]}" || { cat "$folder/log$rank"; exit 1; }; done
unset COPYRPC_SIZE COPYRPC_RENDEZVOUS COPYRPC_SECRET_FILE COPYRPC_NIC

cd "$folder"
"$copyrpc-lab" bench kv --nic rxe0 --backend direct,delegation --quick --clients 2 --keys 1000 --out kv
"$copyrpc-lab" bench rpc --nic rxe0 --quick
echo "daemons: benchmarks ran over rxe0"
