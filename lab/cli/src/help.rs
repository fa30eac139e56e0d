//! What follows the options in `--help`. A paragraph is one line, which is wrapped as wide as the terminal is.

pub(crate) const EXAMPLES: &str = "\
Examples:
  copyrpc-lab bench kv                      a key-value store over every backend
  copyrpc-lab bench clients                 clients in Rust, C and Python
  copyrpc-lab bench limit                   how fast two cores here can talk
  copyrpc-lab bench verbs --quick           the NIC, in some seconds
  copyrpc-lab bench rpc                     calls between two processes
  copyrpc-lab bench inproc                  queues between threads
  copyrpc-lab bench ipc --cell round-trip   calls between processes
  copyrpc-lab bench verbs --json run.jsonl  tables here, JSON lines there
  copyrpc-lab report A B                    is B faster than A, or is it chance?
  copyrpc-lab sim dct                       a measured DC transport, simulated

In a clone of the repository, `cargo lab` builds and runs this program, and `cargo kv` its first command alone.

Exit codes:
  0  done
  1  it failed: a benchmark failed, or its data arrived wrong
  2  the command line, a variable or the file of knobs makes no sense
  3  this machine lacks something: two cores, or the NIC
  130  a signal ended a measurement; what was measured until then is shown

Knobs of the NIC are flags, or variables COPYRPC_NAME; `copyrpc config` lists them. RUST_LOG sets what is logged to \
standard error (error, warn, info, debug); default: warn.";

pub(crate) const BENCH_HELP: &str = "\
Two processes, each pinned to a core of its own, measure together; without two cores nothing is \
measured. Every sample lies between two probes: the round trip of two cache lines tells the pace of the \
machine. Cells take turns in random order, round by round, and no sample is left out. A ratio is that of two \
samples of one round: the median of the rounds, with the 95 % interval of the sign test. A ratio whose interval \
is too wide says that it is undecided, and how many more rounds (--runs) would decide it. --by-pace shows numbers \
for each pace of the machine apart.";

pub(crate) const KV_EXAMPLES: &str = "\
Examples:
  copyrpc-lab bench kv                            two nodes, 4, 16, 64 clients
  copyrpc-lab bench kv --clients 128 --time 5min  as many as a large node has
  copyrpc-lab bench kv --clients 1,2,4 --qd 1,32  a grid: lists multiply
  copyrpc-lab bench kv --preset places,switches   grids that have a name
  copyrpc-lab bench kv --pace open:50000          latency under a fixed load
  copyrpc-lab bench kv --verify full              are answers linearizable?
  mpirun -n 2 copyrpc-lab bench kv --hosts --nic tcp

All backends take turns: each round measures a short interval of each, in random order. No interval begins before \
every client has had an answer. Every byte of every answer is checked by the client that asked; a wrong answer or a \
process that fails ends the run with exit code 1 and is named. SIGINT (Ctrl-C), SIGTERM and SIGHUP end the session; \
what was measured until then is written, and the exit code is 130.

Columns: clients/node; system: the backend; waits: how threads wait; k/s: thousands of answered calls per second, \
median of the rounds, then the smallest and largest; × tcp: ratio to tcp in the same round, median (95 % interval of the \
sign test); p50, p99: medians of the rounds; CPU ns/call: processor time of all processes; MiB/node: memory \
of a node's processes (PSS); QP/node: queue pairs of a node, by construction; errors: calls without an answer.";
