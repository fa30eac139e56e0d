/* Address handles on RoCE whose row of the GID table is empty, or becomes so: each line that is printed is a failure.
 * Linux drivers/infiniband/core/verbs.c, rdma_fill_sgid_attr, and cache.c, rdma_get_gid_attr and del_gid. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GRH 40
#define KEY 0x1234
#define EXPECT(is, ...) do { if (!(is)) { failures++; printf("line %d: ", __LINE__); printf(__VA_ARGS__); puts(""); } } while (0)

static int failures;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char buffer[4096];

/* Where a peer is. */
struct place { uint32_t qpn; union ibv_gid gid; };

static void receive(void) {
	struct ibv_sge sge = { (uintptr_t)buffer, GRH + 1, mr->lkey };
	struct ibv_recv_wr request = { .sg_list = &sge, .num_sge = 1 }, *bad;
	EXPECT(!ibv_post_recv(qp, &request, &bad), "receive");
}

static struct place begin(void) {
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = KEY };
	struct place place = { 0 };
	context = ibv_open_device(list[0]);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_UD, .send_cq = cq, .recv_cq = cq, .cap = { 8, 8, 1, 1, 0 } };
	qp = ibv_create_qp(pd, &init);
	EXPECT(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), "INIT");
	receive();
	attr.qp_state = IBV_QPS_RTR;
	EXPECT(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	EXPECT(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
	place.qpn = qp->qp_num;
	EXPECT(!ibv_query_gid(context, 1, 3, &place.gid), "GID");
	return place;
}

static int next(void) {
	struct ibv_wc wc;
	time_t end = time(NULL) + 30;
	while (time(NULL) < end)
		if (ibv_poll_cq(cq, 1, &wc) > 0)
			return wc.status;
	return -1;
}

/* The other process: it tells of each datagram that comes what is in it. */
static void answer(int in, int out) {
	struct place place = begin();
	char byte;
	EXPECT(write(out, &place, sizeof place) == sizeof place, "place");
	while (read(in, &byte, 1) == 1) {
		byte = next() == IBV_WC_SUCCESS ? buffer[GRH] : '!';
		receive();
		EXPECT(write(out, &byte, 1) == 1, "answer");
	}
	exit(failures != 0);
}

static struct ibv_ah *handle(const struct place *to, int row) {
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = to->gid, .sgid_index = row, .hop_limit = 64 } };
	errno = 0;
	return ibv_create_ah(pd, &attr);
}

/* It completes whether or not it arrives. */
static void post(struct ibv_ah *ah, const struct place *to, char byte) {
	char *from = buffer + 2048;
	*from = byte;
	struct ibv_sge sge = { (uintptr_t)from, 1, mr->lkey };
	struct ibv_send_wr request = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .wr.ud = { ah, to->qpn, KEY } }, *bad;
	EXPECT(!ibv_post_send(qp, &request, &bad), "post");
	EXPECT(next() == IBV_WC_SUCCESS, "datagram %c", byte);
}

static void becomes(const char *condition) {
	struct ibv_async_event event;
	FILE *file = fopen(getenv("COPYRPC_UVERBS_CONDITION"), "w");
	fputs(condition, file);
	fclose(file);
	EXPECT(!ibv_get_async_event(context, &event) && event.event_type == IBV_EVENT_GID_CHANGE, "%s: event", condition);
	ibv_ack_async_event(&event);
}

int main(void) {
	int to[2], from[2], status;
	struct place peer;
	char arrived = 'x';
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (pipe(to) || pipe(from))
		return puts("no pipe"), 2;
	pid_t child = fork();
	if (!child) {
		close(to[1]);
		answer(to[0], from[1]);
	}
	begin();
	EXPECT(read(from[0], &peer, sizeof peer) == sizeof peer, "no peer");
#define ARRIVES(byte) EXPECT(write(to[1], "?", 1) == 1 && read(from[0], &arrived, 1) == 1 && arrived == byte, "%c arrived instead of %c", arrived, byte)
	struct ibv_ah *kept = handle(&peer, 3), *moved;
	EXPECT(kept, "row 3: %d", errno);
	post(kept, &peer, '1');
	ARRIVES('1');
	EXPECT(!handle(&peer, 4) && errno == ENODATA, "row 4, which is empty: %d", errno);
	EXPECT(!handle(&peer, 99), "row 99");
	becomes("unaddressed");
	EXPECT(!handle(&peer, 3) && errno == ENODATA, "row 3, which was emptied: %d", errno);
	post(kept, &peer, '2');
	becomes("moved");
	post(kept, &peer, '3');
	moved = handle(&peer, 5);
	EXPECT(moved, "row 5: %d", errno);
	post(moved, &peer, '4');
	/* 2 and 3 left from a row without a GID. */
	ARRIVES('4');
	close(to[1]);
	waitpid(child, &status, 0);
	return failures != 0 || status;
}
