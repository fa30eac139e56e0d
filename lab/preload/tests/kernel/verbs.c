/* What a kernel and a ConnectX refuse, asked through the system's own libibverbs: each line that is printed is a failure. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
/* What is shorter, libmlx5 may copy by itself when it polls. */
#define LENGTH 512
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
#define EXPECT(is, ...) do { if (!(is)) { failures++; printf("line %d: ", __LINE__); printf(__VA_ARGS__); puts(""); } } while (0)

static int failures;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_port_attr port;

static struct ibv_context *open_device(void) {
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	return count ? ibv_open_device(list[0]) : NULL;
}

static char *map(int rights) {
	return mmap(NULL, PAGE, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static struct ibv_qp *queue_pair(int receives) {
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .cap = { 8, receives, 1, 1, 0 } };
	return ibv_create_qp(pd, &init);
}

static void connect_to(struct ibv_qp *qp, uint32_t peer) {
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL };
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .max_dest_rd_atomic = 4, .min_rnr_timer = 1, .ah_attr = { .dlid = port.lid, .port_num = 1 } };
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 10, .retry_cnt = 1, .rnr_retry = 1, .max_rd_atomic = 4 };
	EXPECT(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	EXPECT(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	EXPECT(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

/* Status of the next completion; -1: none came. */
static int next(void) {
	struct ibv_wc wc;
	time_t end = time(NULL) + 30;
	while (time(NULL) < end)
		if (ibv_poll_cq(cq, 1, &wc) > 0)
			return wc.status;
	return -1;
}

static void post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, struct ibv_mr *from, struct ibv_mr *to) {
	struct ibv_sge sge = { (uintptr_t)from->addr, LENGTH, from->lkey };
	struct ibv_send_wr request = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED, .wr.rdma = { (uintptr_t)to->addr, to->rkey } }, *bad;
	EXPECT(!ibv_post_send(qp, &request, &bad), "post");
}

static void pair(struct ibv_qp **ends) {
	ends[0] = queue_pair(8);
	ends[1] = queue_pair(8);
	connect_to(ends[0], ends[1]->qp_num);
	connect_to(ends[1], ends[0]->qp_num);
}

static void part(struct ibv_qp **ends) {
	struct ibv_wc wc;
	ibv_destroy_qp(ends[0]);
	ibv_destroy_qp(ends[1]);
	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
}

/* The rights of a mapping are those of a region, when it is registered and at every access. */
static void memory(void) {
	struct ibv_qp *ends[2];
	struct ibv_mr *from = ibv_reg_mr(pd, map(PROT_READ | PROT_WRITE), PAGE, ALL), *to;
	char *target = map(PROT_READ | PROT_WRITE);
	struct ibv_sge sge = { (uintptr_t)target, LENGTH, 0 };
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad;
	errno = 0;
	EXPECT(!ibv_reg_mr(pd, map(PROT_READ), PAGE, ALL) && errno == EFAULT, "read-only: %d", errno);
	errno = 0;
	EXPECT(!ibv_reg_mr(pd, map(PROT_NONE), PAGE, 0) && errno == EFAULT, "no rights: %d", errno);
	EXPECT(ibv_reg_mr(pd, map(PROT_READ), PAGE, IBV_ACCESS_REMOTE_READ), "for reading: %d", errno);
	errno = 0;
	EXPECT(!ibv_reg_mr(pd, target, PAGE, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL, "without LOCAL_WRITE: %d", errno);
	to = ibv_reg_mr(pd, target, PAGE, ALL);
	pair(ends);
	post(ends[0], IBV_WR_RDMA_WRITE, from, to);
	EXPECT(next() == IBV_WC_SUCCESS, "a WRITE");
	mprotect(target, PAGE, PROT_READ);
	post(ends[0], IBV_WR_RDMA_WRITE, from, to);
	EXPECT(next() == IBV_WC_REM_ACCESS_ERR, "a WRITE to what became read-only");
	part(ends);
	pair(ends);
	sge.lkey = to->lkey;
	EXPECT(!ibv_post_recv(ends[1], &receive, &bad), "receive");
	post(ends[0], IBV_WR_SEND, from, to);
	int first = next(), second = next();
	EXPECT(first == IBV_WC_LOC_PROT_ERR || second == IBV_WC_LOC_PROT_ERR, "a receive into it: %d %d", first, second);
	EXPECT(first == IBV_WC_REM_OP_ERR || second == IBV_WC_REM_OP_ERR, "a SEND to it: %d %d", first, second);
	part(ends);
}

/* Rights that are taken away count for the next request. */
static void rights(void) {
	struct ibv_qp *ends[2];
	struct ibv_mr *mr = ibv_reg_mr(pd, map(PROT_READ | PROT_WRITE), PAGE, ALL);
	struct ibv_qp_attr none = { .qp_state = IBV_QPS_RTS };
	pair(ends);
	post(ends[0], IBV_WR_RDMA_WRITE, mr, mr);
	EXPECT(next() == IBV_WC_SUCCESS, "a WRITE");
	EXPECT(!ibv_modify_qp(ends[1], &none, IBV_QP_ACCESS_FLAGS), "rights");
	post(ends[0], IBV_WR_RDMA_WRITE, mr, mr);
	EXPECT(next() == IBV_WC_REM_ACCESS_ERR, "a WRITE without rights");
	part(ends);
}

static void ranges(void) {
	struct ibv_device_attr device;
	struct ibv_port_attr none;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_recv_wr receive = { 0 }, *bad;
	struct ibv_qp *qp = queue_pair(5), *ends[2];
	uint32_t nth = 0;
	int result = 0;
	ibv_query_device(context, &device);
	errno = 0;
	EXPECT(!ibv_create_cq(context, device.max_cqe + 1, NULL, NULL, 0) && errno == EINVAL, "entries: %d", errno);
	errno = 0;
	EXPECT(!ibv_create_cq(context, 8, NULL, NULL, context->num_comp_vectors) && errno == EINVAL, "vector: %d", errno);
	EXPECT(ibv_query_port(context, 2, &none) == EINVAL, "port 2");
	EXPECT(!ibv_query_qp(qp, &attr, IBV_QP_CAP, &init), "query");
	EXPECT(attr.cap.max_recv_wr >= 5 && !(attr.cap.max_recv_wr & (attr.cap.max_recv_wr - 1)), "a ring of %u", attr.cap.max_recv_wr);
	ibv_destroy_qp(qp);
	pair(ends);
	ibv_query_qp(ends[0], &attr, IBV_QP_CAP, &init);
	while (!result && nth <= attr.cap.max_recv_wr) {
		result = ibv_post_recv(ends[0], &receive, &bad);
		nth += !result;
	}
	EXPECT(result == ENOMEM && nth == attr.cap.max_recv_wr, "%u of %u receives: %d", nth, attr.cap.max_recv_wr, result);
	part(ends);
}

/* The device has so many regions. */
static void exhaustion(void) {
	char *bytes = map(PROT_READ | PROT_WRITE);
	int count = 0;
	errno = 0;
	while (count < 1 << 20 && ibv_reg_mr(pd, bytes, 8, ALL))
		count++;
	EXPECT(errno == ENOMEM && count > 1000, "after %d regions: %d", count, errno);
}

/* A child opens a device of its own; that of its parent is of no use to it. */
static void forks(void) {
	pid_t child = fork();
	int status;
	if (!child) {
		struct ibv_context *own = open_device();
		_exit(!own || !ibv_alloc_pd(own) || ibv_alloc_pd(context));
	}
	waitpid(child, &status, 0);
	EXPECT(WIFEXITED(status) && !WEXITSTATUS(status), "a child: %x", status);
	EXPECT(ibv_alloc_pd(context), "its parent: %d", errno);
}

int main(void) {
	setvbuf(stdout, NULL, _IOLBF, 0);
	context = open_device();
	if (!context)
		return puts("no device"), 2;
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	ibv_query_port(context, 1, &port);
	memory();
	rights();
	ranges();
	forks();
	exhaustion();
	return failures != 0;
}
