# Hosts of `bench kv`, one in each of two network namespaces. Runs as `unshare -Urn sh namespaces.sh COPYRPC_LAB FOLDER`.
. "$(dirname "$0")/../../../crates/cli/tests/cable.sh"

head -c 32 /dev/urandom >"$folder/secret"
chmod 600 "$folder/secret"
export COPYRPC_SECRET_FILE="$folder/secret" COPYRPC_NIC=tcp COPYRPC_SIZE=2 COPYRPC_RENDEZVOUS=10.77.0.1:7001
bench="bench kv --hosts --backend tcp,delegation,direct,erpc --clients 2 --keys 1000 --quick --verify full --warm-up 20ms"
COPYRPC_RANK=1 COPYRPC_RUNTIME_DIR="$folder/1" $there "$program" $bench &
rank=$!
pids="$pids $rank"
COPYRPC_RANK=0 COPYRPC_RUNTIME_DIR="$folder/0" "$program" $bench --duration 100ms --out "$folder/result" >"$folder/table"
wait $rank
test "$(grep -c ": linearizable: " "$folder/table")" = 4
grep -q "hosts=2" "$folder/table"
echo measured
