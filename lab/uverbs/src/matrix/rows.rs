//! The rows of the table.

use verbs::LinkLayer;

use super::{CommandLineStyle, Row};

const fn verbs(
    shows: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
) -> Row {
    let meeting = CommandLineStyle::Verbs;
    let (package, transports, link) = ("ibverbs-utils", "", LinkLayer::InfiniBand);
    Row { shows, program, package, arguments, meeting, transports, link }
}

const fn perftest(
    shows: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
) -> Row {
    Row { package: "perftest", ..verbs(shows, program, arguments) }
}

const fn ucx(transports: &'static str, arguments: &'static [&'static str]) -> Row {
    let (package, meeting) = ("ucx-utils", CommandLineStyle::Ucx);
    Row { package, meeting, transports, ..verbs("UCX", "ucx_perftest", arguments) }
}

const fn connected(
    shows: &'static str,
    program: &'static str,
    meeting: CommandLineStyle,
    arguments: &'static [&'static str],
) -> Row {
    Row { meeting, package: "rdmacm-utils", ..verbs(shows, program, arguments) }
}

const fn libfabric(shows: &'static str, arguments: &'static [&'static str]) -> Row {
    let (package, meeting) = ("libfabric-bin", CommandLineStyle::Fabric);
    Row { package, meeting, ..verbs(shows, "fi_pingpong", arguments) }
}

const fn qperf(shows: &'static str, arguments: &'static [&'static str]) -> Row {
    let (package, meeting) = ("qperf", CommandLineStyle::Qperf);
    Row { package, meeting, ..verbs(shows, "qperf", arguments) }
}

/// Each message is compared with what its sender has filled in.
const INTEGRITY: &[&str] = &["-i", "-n", "5", "-u", "16384", "-o", "/dev/null"];

const fn open_mpi(
    shows: &'static str,
    transports: &'static str,
    launcher: &'static [&'static str],
) -> Row {
    let (package, meeting) = ("netpipe-openmpi", CommandLineStyle::Mpi(launcher));
    Row { package, meeting, transports, ..verbs(shows, "NPopenmpi", INTEGRITY) }
}

const fn mpich(shows: &'static str, transports: &'static str) -> Row {
    let meeting = CommandLineStyle::Mpi(&["mpirun.mpich", "-n", "2"]);
    let package = "netpipe-mpich2";
    Row { package, meeting, transports, ..verbs(shows, "NPmpich2", INTEGRITY) }
}

const OVER_UCX: &[&str] = &["mpirun.openmpi", "--mca", "pml", "ucx", "-n", "2"];
const OVER_OPENIB: &[&str] = &[
    "mpirun.openmpi",
    "--mca",
    "pml",
    "ob1",
    "--mca",
    "btl",
    "openib,self",
    "--mca",
    "btl_openib_allow_ib",
    "1",
    "-n",
    "2",
];
const OVER_OFI: &[&str] = &[
    "mpirun.openmpi",
    "--mca",
    "pml",
    "cm",
    "--mca",
    "mtl",
    "ofi",
    "--mca",
    "mtl_ofi_provider_include",
    "verbs;ofi_rxm",
    "-n",
    "2",
];

const fn roce(row: Row) -> Row {
    Row { link: LinkLayer::Ethernet, ..row }
}

const UCX_RC: &str = "rc_verbs,ud_verbs:aux,self";
const UCX_RC_MLX5: &str = "rc_mlx5,ud_mlx5:aux,self";
const UCX_UD: &str = "ud_verbs,self";
const UCX_UD_MLX5: &str = "ud_mlx5,self";
const UCX_DC: &str = "dc_mlx5,self";

const TAG: &[&str] = &["-t", "tag_lat", "-n", "100", "-w", "10"];
const PUT: &[&str] = &["-t", "ucp_put_lat", "-n", "100", "-w", "10"];
const GET: &[&str] = &["-t", "ucp_get", "-n", "100", "-w", "10"];
const FADD: &[&str] = &["-t", "ucp_fadd", "-n", "100", "-w", "10"];
const STREAM: &[&str] = &["-t", "stream_lat", "-n", "100", "-w", "10"];
const AM: &[&str] = &["-t", "ucp_am_lat", "-n", "100", "-w", "10"];
const LONG: &[&str] = &["-t", "tag_bw", "-s", "1000000", "-n", "20", "-w", "2"];

/// Every row.
pub const ROWS: &[Row] = &[
    Row { meeting: CommandLineStyle::Alone, ..verbs("the device", "ibv_devinfo", &["-v"]) },
    verbs("RC, data checked", "ibv_rc_pingpong", &["-c", "-n", "100"]),
    verbs("RC, events, data checked", "ibv_rc_pingpong", &["-c", "-e", "-n", "100"]),
    verbs("UC", "ibv_uc_pingpong", &["-n", "100"]),
    verbs("UC, events", "ibv_uc_pingpong", &["-e", "-n", "100"]),
    verbs("UD", "ibv_ud_pingpong", &["-n", "100"]),
    verbs("UD, events", "ibv_ud_pingpong", &["-e", "-n", "100"]),
    verbs("SRQ", "ibv_srq_pingpong", &["-n", "100"]),
    verbs("SRQ, events", "ibv_srq_pingpong", &["-e", "-n", "100"]),
    perftest("WRITE, RC", "ib_write_lat", &["-n", "100"]),
    perftest("WRITE, RC, inline", "ib_write_lat", &["-n", "100", "-I", "64", "-s", "64"]),
    perftest("WRITE, UC", "ib_write_lat", &["-n", "100", "-c", "UC"]),
    perftest("WRITE, DC", "ib_write_lat", &["-n", "100", "-c", "DC"]),
    perftest("WRITE, RC", "ib_write_bw", &["-n", "100", "-s", "65536"]),
    perftest("WRITE, RC, both ways", "ib_write_bw", &["-n", "100", "-b"]),
    perftest("WRITE, four queue pairs", "ib_write_bw", &["-n", "100", "-q", "4"]),
    perftest("WRITE, UC", "ib_write_bw", &["-n", "100", "-c", "UC"]),
    perftest("SEND, RC", "ib_send_lat", &["-n", "100"]),
    perftest("SEND, RC, events", "ib_send_lat", &["-n", "100", "-e"]),
    perftest("SEND, RC, SRQ", "ib_send_lat", &["-n", "100", "--use-srq"]),
    perftest("SEND, UC", "ib_send_lat", &["-n", "100", "-c", "UC"]),
    perftest("SEND, UD", "ib_send_lat", &["-n", "100", "-c", "UD"]),
    perftest("SEND, DC", "ib_send_lat", &["-n", "100", "-c", "DC"]),
    perftest("SEND, RC", "ib_send_bw", &["-n", "100"]),
    perftest("SEND, RC, events", "ib_send_bw", &["-n", "100", "-e"]),
    perftest("SEND, RC, SRQ", "ib_send_bw", &["-n", "100", "--use-srq"]),
    perftest("SEND, UC", "ib_send_bw", &["-n", "100", "-c", "UC"]),
    perftest("SEND, UD", "ib_send_bw", &["-n", "100", "-c", "UD", "-s", "1024"]),
    perftest("READ, RC", "ib_read_lat", &["-n", "100"]),
    perftest("READ, RC", "ib_read_bw", &["-n", "100"]),
    perftest("atomics, RC", "ib_atomic_lat", &["-n", "100"]),
    perftest("atomics, RC", "ib_atomic_bw", &["-n", "100"]),
    perftest("WRITE, options: post list", "ib_write_bw", &["-n", "96", "-l", "8"]),
    perftest("WRITE, options: one completion of 20", "ib_write_bw", &["-n", "100", "-Q", "20"]),
    perftest("WRITE, options: short queue", "ib_write_bw", &["-n", "100", "-t", "8"]),
    perftest("WRITE, options: MTU 256", "ib_write_bw", &["-n", "100", "-m", "256", "-s", "65536"]),
    perftest("WRITE, options: 8 MiB", "ib_write_bw", &["-n", "5", "-s", "8388608"]),
    perftest("WRITE, options: seconds", "ib_write_bw", &["-D", "1", "-s", "1024"]),
    perftest("WRITE, options: no peak", "ib_write_bw", &["-n", "100", "-N"]),
    perftest(
        "WRITE, options: region per queue",
        "ib_write_bw",
        &["-n", "100", "-q", "4", "--mr_per_qp"],
    ),
    perftest("WRITE, options: service level", "ib_write_bw", &["-n", "100", "-S", "3"]),
    perftest("WRITE, options: cycles, histogram", "ib_write_lat", &["-n", "100", "-C", "-H"]),
    perftest("WRITE, options: unsorted", "ib_write_lat", &["-n", "100", "-U"]),
    perftest(
        "WRITE, options: both ways, four queues",
        "ib_write_bw",
        &["-n", "100", "-b", "-q", "4"],
    ),
    perftest("SEND, options: both ways", "ib_send_bw", &["-n", "100", "-b"]),
    perftest("SEND, options: receives", "ib_send_bw", &["-n", "100", "-r", "64"]),
    perftest("SEND, options: inline", "ib_send_lat", &["-n", "100", "-I", "32", "-s", "32"]),
    perftest(
        "SEND, options: both ways, UD",
        "ib_send_bw",
        &["-n", "100", "-b", "-c", "UD", "-s", "1024"],
    ),
    perftest("SEND, options: MTU 512", "ib_send_lat", &["-n", "100", "-m", "512", "-s", "4096"]),
    perftest(
        "SEND, options: four queues, SRQ",
        "ib_send_bw",
        &["-n", "100", "-q", "4", "--use-srq"],
    ),
    perftest("READ, options: outstanding", "ib_read_bw", &["-n", "100", "-o", "4"]),
    perftest("READ, options: events", "ib_read_lat", &["-n", "100", "-e"]),
    perftest("READ, options: both ways", "ib_read_bw", &["-n", "100", "-b"]),
    perftest("READ, options: 1 MiB", "ib_read_bw", &["-n", "20", "-s", "1048576"]),
    perftest(
        "atomics, options: fetch and add",
        "ib_atomic_lat",
        &["-n", "100", "-A", "FETCH_AND_ADD"],
    ),
    perftest(
        "atomics, options: compare and swap",
        "ib_atomic_bw",
        &["-n", "100", "-A", "CMP_AND_SWAP"],
    ),
    perftest("atomics, options: both ways", "ib_atomic_bw", &["-n", "100", "-b"]),
    ucx(UCX_RC, TAG),
    ucx(UCX_RC, PUT),
    ucx(UCX_RC, GET),
    ucx(UCX_RC, FADD),
    ucx(UCX_RC, STREAM),
    ucx(UCX_RC, AM),
    ucx(UCX_RC, LONG),
    ucx(UCX_RC, &["-t", "tag_sync_lat", "-n", "100", "-w", "10"]),
    ucx(UCX_RC, &["-t", "ucp_put_bw", "-s", "65536", "-n", "100", "-w", "10"]),
    ucx(UCX_RC, &["-t", "ucp_swap", "-n", "100", "-w", "10"]),
    ucx(UCX_RC, &["-t", "ucp_cswap", "-n", "100", "-w", "10"]),
    ucx(UCX_RC, &["-t", "stream_bw", "-n", "100", "-w", "10"]),
    ucx(UCX_RC, &["-t", "ucp_am_bw", "-s", "65536", "-n", "100", "-w", "10"]),
    ucx(UCX_UD, TAG),
    ucx(UCX_UD, PUT),
    ucx(UCX_UD, GET),
    ucx(UCX_UD, FADD),
    ucx(UCX_UD, STREAM),
    ucx(UCX_UD, AM),
    ucx(UCX_RC_MLX5, TAG),
    ucx(UCX_RC_MLX5, PUT),
    ucx(UCX_RC_MLX5, GET),
    ucx(UCX_RC_MLX5, FADD),
    ucx(UCX_RC_MLX5, STREAM),
    ucx(UCX_RC_MLX5, AM),
    ucx(UCX_RC_MLX5, LONG),
    ucx(UCX_UD_MLX5, TAG),
    ucx(UCX_UD_MLX5, PUT),
    ucx(UCX_UD_MLX5, GET),
    ucx(UCX_UD_MLX5, FADD),
    ucx(UCX_UD_MLX5, STREAM),
    ucx(UCX_UD_MLX5, AM),
    ucx(UCX_DC, TAG),
    ucx(UCX_DC, PUT),
    ucx(UCX_DC, GET),
    ucx(UCX_DC, FADD),
    ucx(UCX_DC, STREAM),
    ucx(UCX_DC, AM),
    verbs("RC, global route", "ibv_rc_pingpong", &["-c", "-g", "0", "-n", "100"]),
    verbs("UD, global route", "ibv_ud_pingpong", &["-g", "0", "-n", "100"]),
    roce(Row { meeting: CommandLineStyle::Alone, ..verbs("the device", "ibv_devinfo", &["-v"]) }),
    roce(verbs("RC, data checked", "ibv_rc_pingpong", &["-c", "-g", "3", "-n", "100"])),
    roce(verbs("RC, v1, data checked", "ibv_rc_pingpong", &["-c", "-g", "0", "-n", "100"])),
    roce(verbs("UC", "ibv_uc_pingpong", &["-g", "3", "-n", "100"])),
    roce(verbs("UD, IPv4", "ibv_ud_pingpong", &["-g", "3", "-n", "100"])),
    roce(verbs("UD, IPv6, events", "ibv_ud_pingpong", &["-e", "-g", "1", "-n", "100"])),
    roce(verbs("SRQ", "ibv_srq_pingpong", &["-g", "3", "-n", "100"])),
    roce(perftest("WRITE, RC", "ib_write_lat", &["-x", "3", "-n", "100"])),
    roce(perftest("WRITE, RC", "ib_write_bw", &["-x", "3", "-n", "100", "-s", "65536"])),
    roce(perftest("WRITE, DC", "ib_write_lat", &["-x", "3", "-n", "100", "-c", "DC"])),
    roce(perftest("SEND, RC, events", "ib_send_lat", &["-x", "3", "-n", "100", "-e"])),
    roce(perftest("SEND, UD", "ib_send_lat", &["-x", "3", "-n", "100", "-c", "UD"])),
    roce(perftest("READ, RC", "ib_read_lat", &["-x", "3", "-n", "100"])),
    roce(perftest("atomics, RC", "ib_atomic_lat", &["-x", "3", "-n", "100"])),
    roce(ucx(UCX_RC, TAG)),
    roce(ucx(UCX_UD, TAG)),
    roce(ucx(UCX_RC_MLX5, TAG)),
    roce(ucx(UCX_UD_MLX5, TAG)),
    roce(ucx(UCX_DC, TAG)),
    connected("rdma_cm, data checked", "rping", CommandLineStyle::Rping, PINGS),
    connected("rdma_cm", "ucmatose", CommandLineStyle::ConnectionManager, &[]),
    connected("rdma_cm", "rdma_server", CommandLineStyle::ConnectionManager, &[]),
    perftest("WRITE, RC, rdma_cm", "ib_write_lat", &["-R", "-n", "100"]),
    perftest("SEND, RC, rdma_cm", "ib_send_bw", &["-R", "-n", "100"]),
    perftest("SEND, UD, rdma_cm", "ib_send_lat", &["-R", "-n", "100", "-c", "UD"]),
    perftest("WRITE, bandwidth, rdma_cm", "ib_write_bw", &["-R", "-n", "100"]),
    perftest("READ, RC, rdma_cm", "ib_read_bw", &["-R", "-n", "100"]),
    connected("rdma_cm, four connections", "ucmatose", CommandLineStyle::ConnectionManager, FOUR),
    connected("rdma_cm, GIDs", "ucmatose", CommandLineStyle::Gids, &["-f", "gid"]),
    connected("rdma_cm, GIDs", "ucmatose", CommandLineStyle::Gids, &["-f", "gid", "-P", "ib"]),
    connected(
        "rdma_cm, port space of InfiniBand",
        "ucmatose",
        CommandLineStyle::ConnectionManager,
        PS_IB,
    ),
    connected("rdma_cm, rsockets, GIDs, checked", "rstream", CommandLineStyle::Gids, GID_STREAM),
    roce(connected("rdma_cm", "ucmatose", CommandLineStyle::ConnectionManager, &[])),
    roce(perftest("SEND, RC, rdma_cm", "ib_send_bw", &["-R", "-n", "100"])),
    connected("rdma_cm, UD", "udaddy", CommandLineStyle::Datagrams, &[]),
    connected(
        "rdma_cm, rsockets, checked",
        "rstream",
        CommandLineStyle::ConnectionManager,
        STREAM_CM,
    ),
    connected("rdma_cm, rsockets", "riostream", CommandLineStyle::ConnectionManager, RIO),
    roce(connected("rdma_cm, data checked", "rping", CommandLineStyle::Rping, PINGS)),
    roce(connected("rdma_cm, UD", "udaddy", CommandLineStyle::Datagrams, &[])),
    libfabric("libfabric, RC, data checked", &["-p", "verbs", "-e", "msg", "-I", "20", "-c"]),
    libfabric("libfabric, UD, data checked", &["-p", "verbs", "-e", "dgram", "-I", "20", "-c"]),
    libfabric("libfabric, RXM", &["-p", "verbs;ofi_rxm", "-e", "rdm", "-I", "20"]),
    libfabric(
        "libfabric, RXM, data checked",
        &["-p", "verbs;ofi_rxm", "-e", "rdm", "-I", "20", "-c"],
    ),
    libfabric(
        "libfabric, RXD, data checked",
        &["-p", "verbs;ofi_rxd", "-e", "rdm", "-I", "20", "-c"],
    ),
    roce(libfabric("libfabric, RC, data checked", &["-p", "verbs", "-e", "msg", "-I", "20", "-c"])),
    connected("rdma_cm, rsockets, file compared", "rcopy", CommandLineStyle::Copy, &[]),
    qperf("RC, UC, UD", &["-t", "1", "rc_lat", "rc_bw", "uc_lat", "ud_lat"]),
    qperf(
        "WRITE, READ, atomics",
        &["-t", "1", "rc_rdma_write_lat", "rc_rdma_read_bw", "rc_fetch_add_mr"],
    ),
    qperf("atomics, checked", &["-t", "1", "ver_rc_compare_swap", "ver_rc_fetch_add"]),
    Row {
        meeting: CommandLineStyle::Demo,
        package: "ucx-utils",
        transports: "rc_verbs,ud_verbs:aux,tcp,self",
        ..verbs("UCX, data checked", "io_demo", DEMO)
    },
    open_mpi("Open MPI over UCX, RC, data checked", UCX_RC, OVER_UCX),
    open_mpi("Open MPI over UCX, UD, data checked", UCX_UD, OVER_UCX),
    open_mpi("Open MPI over UCX, DC, data checked", UCX_DC, OVER_UCX),
    open_mpi("Open MPI over libfabric, data checked", "", OVER_OFI),
    open_mpi("Open MPI over openib, data checked", "", OVER_OPENIB),
    mpich("MPICH over UCX, RC, data checked", UCX_RC_MLX5),
    mpich("MPICH over UCX, UD, data checked", UCX_UD),
    mpich("MPICH over UCX, DC, data checked", UCX_DC),
    roce(open_mpi("Open MPI over UCX, RC, data checked", UCX_RC_MLX5, OVER_UCX)),
    roce(mpich("MPICH over UCX, RC, data checked", UCX_RC)),
];

const DEMO: &[&str] = &["-i", "50", "-q", "-o", "read,write", "-d", "64:65536"];

const FOUR: &[&str] = &["-c", "4", "-C", "50"];
const PINGS: &[&str] = &["-V", "-C", "20"];
const RIO: &[&str] = &["-C", "100", "-S", "1024"];
const PS_IB: &[&str] = &["-P", "ib"];
const GID_STREAM: &[&str] = &["-f", "gid", "-T", "v", "-C", "100", "-S", "1024"];
const STREAM_CM: &[&str] = &["-T", "v", "-C", "100", "-S", "1024"];
