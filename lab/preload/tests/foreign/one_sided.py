"""A verbs program of rdma-core's Python bindings: it is written to with immediate data, reads what was written from its peer, and
writes it back.

Arguments: TCP port, row of the GID table (-1: LIDs), rounds, bytes of a message, seconds to wait.
"""

import socket
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import RecvWR, SendWR, SGE

PORT, ROW, ROUNDS, BYTES, SECONDS = map(int, sys.argv[1:6])
END = time.monotonic() + SECONDS
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
ALL = 0xFFFFFFFF


def connect(qp, peer):
    """To RTS, with the peer's address."""
    lid, qpn, psn, gid = peer[:4]
    attr = QPAttr(port_num=1)
    attr.qp_access_flags = ACCESS
    attr.path_mtu = e.IBV_MTU_1024
    attr.max_dest_rd_atomic = attr.max_rd_atomic = 1
    attr.min_rnr_timer, attr.timeout = 12, 14
    attr.retry_cnt = attr.rnr_retry = 7
    attr.dest_qp_num, attr.rq_psn, attr.sq_psn = int(qpn, 16), int(psn, 16), 0
    if ROW < 0:
        attr.ah_attr = AHAttr(port_num=1, dlid=int(lid, 16))
    else:
        gid = GID(":".join(gid[at : at + 4] for at in range(0, 32, 4)))
        route = GlobalRoute(dgid=gid, sgid_index=ROW)
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
    qp.to_rts(attr)


def completion(cq, opcode):
    """The next completion, which is a good one of this kind."""
    while time.monotonic() < END:
        count, found = cq.poll()
        if count:
            assert found[0].status == e.IBV_WC_SUCCESS, found[0]
            assert found[0].opcode == opcode, found[0]
            return found[0]
    raise TimeoutError(f"no completion {opcode}")


def main():
    listener = socket.create_server(("127.0.0.1", PORT))
    context = Context(name=get_device_list()[0].name.decode())
    domain = PD(context)
    cq = CQ(context, 16)
    # The bindings want room in a receive, in which nothing lands.
    memory = MR(domain, 3 * BYTES, ACCESS)
    receive = RecvWR(num_sge=1, sg=[SGE(memory.buf + 2 * BYTES, BYTES, memory.lkey)])
    cap = QPCap(max_send_wr=8, max_recv_wr=8, max_send_sge=1, max_recv_sge=1)
    qp = QP(domain, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap))
    listener.settimeout(SECONDS)
    stream = listener.accept()[0]
    stream.settimeout(SECONDS)
    lid, gid = context.query_port(1).lid, "0" * 32
    if ROW >= 0:
        gid = context.query_gid(1, ROW).gid.replace(":", "")
    own = f"{lid:04x}:{qp.qp_num:06x}:000000:{gid}:{memory.rkey:08x}:{memory.buf:016x}\0"
    peer = stream.recv(len(own), socket.MSG_WAITALL).decode().rstrip("\0").split(":")
    rkey, address = (int(word, 16) for word in peer[4:])
    connect(qp, peer)
    qp.post_recv(receive)
    stream.sendall(own.encode())
    for number in range(ROUNDS):
        told = completion(cq, e.IBV_WC_RECV_RDMA_WITH_IMM)
        assert told.wc_flags & e.IBV_WC_WITH_IMM and told.byte_len == BYTES, told
        assert socket.ntohl(told.imm_data) == number, told
        place = SGE(memory.buf + BYTES, BYTES, memory.lkey)
        read = SendWR(opcode=e.IBV_WR_RDMA_READ, num_sge=1, sg=[place])
        read.set_wr_rdma(rkey, address)
        qp.post_send(read)
        completion(cq, e.IBV_WC_RDMA_READ)
        assert memory.read(BYTES, 0) == memory.read(BYTES, BYTES), f"round {number}"
        qp.post_recv(receive)
        write = SendWR(
            opcode=e.IBV_WR_RDMA_WRITE_WITH_IMM,
            num_sge=1,
            sg=[place],
            imm_data=socket.htonl(ALL ^ number),
        )
        write.set_wr_rdma(rkey, address + BYTES)
        qp.post_send(write)
        completion(cq, e.IBV_WC_RDMA_WRITE)
    # Until the peer has read.
    stream.recv(1 << 10)
    while stream.recv(1 << 10):
        pass


main()
