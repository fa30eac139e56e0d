/* What a kernel's connection manager promises, asked through the system's own librdmacm: each line that is printed is a
 * failure. */
#include <arpa/inet.h>
#include <errno.h>
#include <unistd.h>
#include <infiniband/ib.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <string.h>

#define EXPECT(is, ...) do { if (!(is)) { failures++; printf("line %d: ", __LINE__); printf(__VA_ARGS__); puts(""); } } while (0)

static int failures;
static struct rdma_event_channel *channel;

static struct rdma_cm_id *identifier(void) {
	struct rdma_cm_id *id;
	return rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) ? NULL : id;
}

static void wait_for(enum rdma_cm_event_type kind) {
	struct rdma_cm_event *event;
	EXPECT(!rdma_get_cm_event(channel, &event) && event->event == kind, "%s", rdma_event_str(event->event));
	rdma_ack_cm_event(event);
}

/* A name is free when the call that destroys its listener has returned. */
static void names(void) {
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int taken = 0;
	for (int round = 0; round < 200; round++) {
		struct rdma_cm_id *listener = identifier();
		if (rdma_bind_addr(listener, (void *)&address) || rdma_listen(listener, 4))
			taken++;
		address.sin_port = rdma_get_src_port(listener) ?: address.sin_port;
		rdma_destroy_id(listener);
	}
	EXPECT(!taken, "%d of 200 times the address was in use", taken);
}

/* Addresses of family AF_IB, of which librdmacm asks with its first identifier whether there are any. */
static void families(void) {
	/* struct rdma_ucm_cmd_hdr, then struct rdma_ucm_bind and rdma_ucm_bind_ip: rdma/rdma_user_cm.h */
	struct { uint32_t command; uint16_t in, out; uint32_t id; uint16_t size, reserved; uint16_t family; char rest[126]; } general = {
		.command = 20, .in = 136, .size = 48, .family = AF_IB, .reserved = 1 };
	struct { uint32_t command; uint16_t in, out; uint64_t response; struct sockaddr_in6 address; uint32_t id; } ip = {
		.command = 2, .in = 40, .address.sin6_family = AF_IB };
	struct sockaddr_ib to = { .sib_family = AF_IB, .sib_pkey = htons(0xffff) };
	struct rdma_cm_id *id = identifier();
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = ibv_open_device(devices[0]);
	union ibv_gid own;
	uint16_t *last = (void *)&to.sib_sid;
	errno = 0;
	EXPECT(write(channel->fd, &general, sizeof general) < 0 && errno == EINVAL, "a reserved field: %d", errno);
	general.reserved = 0, general.size = 28, errno = 0;
	EXPECT(write(channel->fd, &general, sizeof general) < 0 && errno == EINVAL, "another size: %d", errno);
	errno = 0;
	EXPECT(write(channel->fd, &ip, sizeof ip) < 0 && errno == EINVAL, "BIND_IP of AF_IB: %d", errno);
	EXPECT(context && !ibv_query_gid(context, 1, 0, &own), "GID");
	memcpy(&to.sib_addr, &own, sizeof own);
	last[2] = htons(RDMA_PS_TCP), last[3] = htons(9);
	memset(&to.sib_sid_mask, 0xff, 8);
	EXPECT(!rdma_resolve_addr(id, NULL, (void *)&to, 2000), "address: %d", errno);
	wait_for(RDMA_CM_EVENT_ADDR_RESOLVED);
	EXPECT(!memcmp(&id->route.addr.addr.ibaddr.sgid, &own, sizeof own), "the own GID");
	EXPECT(!rdma_resolve_route(id, 2000), "route: %d", errno);
	wait_for(RDMA_CM_EVENT_ROUTE_RESOLVED);
	EXPECT(id->route.num_paths == 1 && !memcmp(&id->route.path_rec->dgid, &own, sizeof own), "path");
	rdma_destroy_id(id);
	id = identifier();
	to.sib_addr.sib_addr8[7] ^= 1, errno = 0;
	EXPECT(rdma_resolve_addr(id, NULL, (void *)&to, 2000) && errno == ENODEV, "another subnet: %d", errno);
	rdma_destroy_id(id);
}

static void limits(void) {
	char data[255];
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(9) };
	struct rdma_conn_param parameters = { .private_data = data, .private_data_len = 57 };
	struct rdma_cm_id *id = identifier(), *none;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	uint8_t timeout = 21;
	int mask, flag = 1;
	memset(data, 7, sizeof data);
	errno = 0;
	EXPECT(rdma_create_id(channel, &none, NULL, 0) && errno == EINVAL, "port space 0: %d", errno);
	EXPECT(!rdma_resolve_addr(id, NULL, (void *)&address, 2000), "address");
	wait_for(RDMA_CM_EVENT_ADDR_RESOLVED);
	EXPECT(!rdma_resolve_route(id, 2000), "route");
	wait_for(RDMA_CM_EVENT_ROUTE_RESOLVED);
	EXPECT(id->route.path_rec->dlid || id->route.path_rec->dgid.global.interface_id, "a path to nowhere");
	EXPECT(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1), "timeout: %d", errno);
	EXPECT(!rdma_init_qp_attr(id, &attr, &mask) && attr.timeout == 21, "timeout %d", attr.timeout);
	EXPECT(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &flag, sizeof flag), "reuse: %d", errno);
	errno = 0;
	EXPECT(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 2) && errno == EINVAL, "length: %d", errno);
	errno = 0;
	EXPECT(rdma_set_option(id, RDMA_OPTION_ID, 99, &timeout, 1) && errno == ENOSYS, "option 99: %d", errno);
	EXPECT(!rdma_create_qp(id, NULL, &init), "queue pair");
	errno = 0;
	EXPECT(rdma_connect(id, &parameters) && errno == EINVAL, "57 bytes: %d", errno);
	rdma_destroy_qp(id);
	rdma_destroy_id(id);
}

int main(void) {
	setvbuf(stdout, NULL, _IOLBF, 0);
	channel = rdma_create_event_channel();
	if (!channel)
		return puts("no channel"), 2;
	names();
	limits();
	families();
	return failures != 0;
}
