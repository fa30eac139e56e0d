# Two daemons in this network namespace, which share memory, and one in another at the end of a cable, which is reached
# over TCP. While the cable is cut calls over it end, those by memory go on, and afterwards all do. A killed daemon is
# given up on either side. Runs as `unshare -Urn sh namespaces.sh COPYRPC FOLDER`.
. "$(dirname "$0")/cable.sh"
copyrpc=$program

head -c 32 /dev/urandom >"$folder/secret"
chmod 600 "$folder/secret"
# TCP ports of the NIC are 7100 and the next ones, in hexadecimal 1BBC to 1BCF, and no others are.
export COPYRPC_NIC=auto COPYRPC_SIZE=3 COPYRPC_RENDEZVOUS=10.77.0.1:7000 COPYRPC_TCP_PORT=7100
export COPYRPC_SECRET_FILE="$folder/secret" COPYRPC_CALL_TIMEOUT=3s
export COPYRPC_HEARTBEAT_INTERVAL=50ms COPYRPC_SUSPECT_AFTER=500ms COPYRPC_DEAD_AFTER=1s
COPYRPC_RANK=0 COPYRPC_RUNTIME_DIR="$folder/0" "$copyrpc" daemon &
pids="$pids $!"
COPYRPC_RANK=1 COPYRPC_RUNTIME_DIR="$folder/1" $there "$copyrpc" daemon &
far=$!
pids="$pids $far"
COPYRPC_RANK=2 COPYRPC_RUNTIME_DIR="$folder/2" "$copyrpc" daemon &
near=$!
pids="$pids $near"

# Rank 1 answers rank 0, and the other way round; the number of looks bounds the wait.
ping() {
    COPYRPC_RUNTIME_DIR="$folder/$1" "$copyrpc" ping "$2" --count 3 >"$folder/ping" 2>&1
}
reach() {
    looks=0
    until ping "$1" "$2"; do
        looks=$((looks + 1))
        if [ $looks -gt 200 ]; then cat "$folder/ping"; exit 1; fi
        sleep 0.1
    done
}
# Streams of the NIC between 10.77.0.1 and this address, as the kernel writes it.
streams() {
    grep -cE " 01004D0A:(1B[BC]. $1:|.... $1:1B[BC]. )" /proc/net/tcp || true
}
reach_all() {
    for pair in "0 1" "1 0" "0 2" "2 0" "1 2" "2 1"; do reach $pair; done
}
reach_all
test "$(streams 02004D0A)" -gt 0
test "$(streams 01004D0A)" = 0
ip link set near down
if ping 0 1; then echo "an answer came without a cable"; exit 1; fi
reach 0 2
reach 2 0
ip link set near up
reach_all
test "$(streams 01004D0A)" = 0
echo reached

kill -9 $near
if ping 0 2; then echo "a dead daemon of this host answered"; exit 1; fi
reach 0 1
kill -9 $far
if ping 0 1; then echo "a dead daemon of the other host answered"; exit 1; fi
COPYRPC_RANK=1 COPYRPC_RUNTIME_DIR="$folder/1" $there "$copyrpc" daemon &
pids="$pids $!"
COPYRPC_RANK=2 COPYRPC_RUNTIME_DIR="$folder/2" "$copyrpc" daemon &
pids="$pids $!"
reach_all
test "$(streams 01004D0A)" = 0
echo survived
