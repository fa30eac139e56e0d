//! What follows the options in `--help`. A paragraph is one line, which is wrapped as wide as the terminal is.

pub(crate) const EXAMPLES: &str = "\
Examples:
  copyrpc daemon                        serve the processes of this node
  copyrpc info                          devices, the NIC in use, every knob
  copyrpc doctor                        what would fail here, and the remedy
  copyrpc ping 1                        ask the daemon of rank 1
  copyrpc services                      what this node offers
  copyrpc top                           watch the daemons of this machine

Benchmarks, simulations and tools for verbs programs are another program, `copyrpc-lab`.

Exit codes:
  0  done
  1  it failed: no daemon answers, or a call failed
  2  the command line, a variable or the file of knobs makes no sense
  3  this machine lacks something: the NIC, limits, or what `doctor` found
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
