//! What follows the options in `--help`. A paragraph is one line, which is wrapped as wide as the terminal is.

pub(crate) const EXAMPLES: &str = "\
Examples:
  copyrpc info                          devices, the NIC in use, every knob
  copyrpc bench limit                   how fast two cores here can talk at all
  copyrpc bench verbs --quick           the NIC, in some seconds
  copyrpc bench inproc                  queues between threads
  copyrpc bench ipc --cell round-trip   calls between processes
  copyrpc bench verbs --json run.jsonl  tables here, JSON lines there
  copyrpc bench rpc                     calls between two processes
  copyrpc bench kv                      a key-value store over every backend
  copyrpc report A B                    is B faster than A, or is it chance?
  copyrpc sim dct                       a measured DC transport, simulated

Exit codes:
  0  done
  1  it failed: nobody answers, a benchmark failed, or its data arrived wrong
  2  the command line, a variable or the file of knobs makes no sense
  3  this machine lacks something: two cores, the NIC, or what `doctor` found
  75 a daemon lacks what may come by itself: a port, a device, the rendezvous

Every knob is a flag of `daemon` and `config`, a variable COPYRPC_NAME, and a line of the TOML file \
that --config or COPYRPC_CONFIG names; `copyrpc config` lists them.

RUST_LOG sets what is logged to standard error (error, warn, info, debug); default: warn, of `daemon` \
info.";

pub(crate) const CONFIG_EXAMPLES: &str = "\
Examples:
  copyrpc config                       every knob and its value
  copyrpc config --show-origin         and where that comes from
  copyrpc config --dead-after 1s       whether a daemon would start with it";

pub(crate) const DAEMON_EXAMPLES: &str = "\
Examples:
  copyrpc daemon                       one node, for processes of this machine
  copyrpc daemon --fork 4              four nodes on this machine
  mpirun -n 4 --map-by node copyrpc daemon   one node on each of four hosts
  srun --ntasks-per-node=1 copyrpc daemon --rendezvous n:7000 --secret-file FILE

Ranks of a launcher need no secret, rendezvous or rank: those of one host meet in the runtime folder, those \
of several by PMIx, by PMI-1, or in the home folder, whichever is there first.

SIGTERM and SIGINT let calls in flight end, for at most --drain-timeout. A second SIGINT ends at once.";

pub(crate) const STAT_EXAMPLES: &str = "\
Examples:
  copyrpc stat                         of each since its start, dead or not
  copyrpc stat --interval 10s          during the next ten seconds
  copyrpc stat --serve 127.0.0.1:9464  for Prometheus";

pub(crate) const UVERBS_EXAMPLES: &str = "\
Examples:
  copyrpc uverbs run -- ibv_devinfo -v
  copyrpc uverbs run -- ib_write_lat &
  copyrpc uverbs run -- ib_write_lat localhost
  copyrpc uverbs run --explain -- PROGRAM    what the NIC refuses it
  copyrpc uverbs matrix --only ib_send";

pub(crate) const BENCH_HELP: &str = "\
Two processes, each pinned to a core of its own, measure together; without two cores nothing is \
measured. Every sample lies between two probes: the round trip of two cache lines tells the pace of the \
machine. Cells take turns in random order, round by round, and no sample is left out. A ratio is that of two \
samples of one round: the median of the rounds, with the 95 % interval of the sign test. A ratio whose interval \
is too wide says that it is undecided, and how many more rounds (--runs) would decide it. --by-pace shows numbers \
for each pace of the machine apart.";

pub(crate) const VERBS_EXAMPLES: &str = "\
Examples:
  copyrpc bench verbs --quick
  copyrpc bench verbs --cell write-imm --runs 15
  copyrpc bench verbs --json - | jq 'select(.ratio) | [.cell, .regime, .ratio]'

All data is checked: sequence numbers and bytes of every small message, the last word of every large \
one, and every byte of what is in memory at the end of a sample. Wrong data ends the run with exit \
code 1.";

pub(crate) const RPC_EXAMPLES: &str = "\
Examples:
  copyrpc bench rpc --quick
  copyrpc bench rpc --transport rc,dc --inline on,off --cell endpoint
  copyrpc bench rpc --flush self-clocked:1,immediate,hold:10us --cell qd256
  copyrpc bench rpc --preset switches --runs 5 --markdown switches.md
  copyrpc bench rpc --nic tcp --server               on one host
  copyrpc bench rpc --nic tcp --client HOST          on another one

Lists of values are multiplied: every combination is measured, and named in its cells. A round trip is \
a call and its answer; a rate counts calls. Ratios: to the raw WRITE_IMM round trip or rate, and (of \
the limit) to the cache-line round trip or stream, all measured in the same run. Every byte of every \
answer is compared; a call that ends otherwise ends the run with exit code 1.";

pub(crate) const KV_EXAMPLES: &str = "\
Examples:
  copyrpc bench kv                                two nodes of 4, 16, 64 clients
  copyrpc bench kv --clients 128 --time 5min      as many as a large node has
  copyrpc bench kv --clients 1,2,4,8 --qd 1,32    a grid: lists multiply
  copyrpc bench kv --preset places,switches       grids that have a name
  copyrpc bench kv --pace open:50000              latency under a fixed load
  copyrpc bench kv --verify full --mix 50:10:20   are the answers linearizable?
  mpirun -n 2 copyrpc bench kv --hosts --nic tcp  nodes are hosts

All backends take turns: each round measures a short interval of each, in random order. No interval begins before \
every client has had an answer. Every byte of every answer is checked by the client that asked; a wrong answer or a \
process that fails ends the run with exit code 1 and is named. SIGINT (Ctrl-C) and SIGTERM end the session; what was \
measured until then is written, and the exit code is 1.

Columns: clients/node; system: the backend; waits: how threads wait; k/s: thousands of answered calls per second, \
median of the rounds, then the smallest and largest; × tcp: ratio to tcp in the same round, median (95 % interval of the \
sign test); p50, p99: medians of the rounds; CPU ns/call: processor time of all processes; MiB/node: memory \
of a node's processes (PSS); QP/node: queue pairs of a node, by construction; errors: calls without an answer.";
