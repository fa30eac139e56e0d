/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * libcopyrpc: calls through the daemon of a node, and services that a process provides.
 *
 * Every function returns a status: COPYRPC_OK, or why not; copyrpc_last_error() has the words for it,
 * on the same thread. No function waits longer than its deadline. No function unwinds into its caller.
 *
 * Threads: a handle serves one thread at a time, and may move from thread to thread. A function that gets a handle
 * while another thread is inside a function with it does nothing, and returns COPYRPC_FAILED_PRECONDITION; so does
 * one that a callback of that handle calls. The functions that free a handle leave it as it is in that case, and
 * copyrpc_last_error() says so. Two handles are independent. A copyrpc_request may be answered by any thread.
 * copyrpc_provider_stop() may be called by any thread while another one is inside copyrpc_provider_serve(), and not
 * after copyrpc_provider_free(). A handle of a parent process is refused in a child that was forked.
 *
 * Memory: what a function hands out through a `const void **` belongs to the library, and is valid until
 * the next call with the same handle. NULL handles are refused with COPYRPC_INVALID_ARGUMENT; NULL may be
 * freed. Times are in microseconds; a timeout of 0 means the handle's default.
 */
#ifndef COPYRPC_H
#define COPYRPC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Grows with every change that breaks programs built before it. */
#define COPYRPC_ABI 1

/* The rank of the own node. */
#define COPYRPC_HERE UINT32_MAX

/* How a call ended: the numbers of gRPC. */
typedef int32_t copyrpc_status;
enum {
    COPYRPC_OK = 0,
    COPYRPC_CANCELLED = 1,
    COPYRPC_UNKNOWN = 2,
    COPYRPC_INVALID_ARGUMENT = 3,
    COPYRPC_DEADLINE_EXCEEDED = 4,
    COPYRPC_NOT_FOUND = 5,
    COPYRPC_ALREADY_EXISTS = 6,
    COPYRPC_PERMISSION_DENIED = 7,
    COPYRPC_RESOURCE_EXHAUSTED = 8,
    COPYRPC_FAILED_PRECONDITION = 9,
    COPYRPC_ABORTED = 10,
    COPYRPC_OUT_OF_RANGE = 11,
    COPYRPC_UNIMPLEMENTED = 12,
    COPYRPC_INTERNAL = 13,
    COPYRPC_UNAVAILABLE = 14,
    COPYRPC_DATA_LOSS = 15,
    COPYRPC_UNAUTHENTICATED = 16
};

/* Who says so: copyrpc_last_origin(). */
typedef int32_t copyrpc_origin;
enum {
    COPYRPC_ORIGIN_NONE = 0,         /* it succeeded */
    COPYRPC_ORIGIN_SERVICE = 1,      /* the service; copyrpc_last_detail() has what it adds */
    COPYRPC_ORIGIN_NO_METHOD = 2,    /* the service has no such method */
    COPYRPC_ORIGIN_NO_SERVICE = 3,   /* no process offers the service on that rank */
    COPYRPC_ORIGIN_NO_RANK = 4,      /* the job has no such rank */
    COPYRPC_ORIGIN_DAEMON = 5,       /* a daemon on the way */
    COPYRPC_ORIGIN_DAEMON_GONE = 6,  /* the daemon of this node does not answer */
    COPYRPC_ORIGIN_LIBRARY = 7,      /* this library: a wrong argument, or no connection */
    COPYRPC_ORIGIN_DENIED = 8        /* this process may not call or offer that service: COPYRPC_RIGHTS */
};

/* Of the latest function that failed on this thread. The text ends with a zero byte, and is valid until the
 * next function of this library on this thread. */
const char *copyrpc_last_error(void);
copyrpc_origin copyrpc_last_origin(void);
/* 1 if the latest call certainly was not executed. */
int copyrpc_last_not_executed(void);
const void *copyrpc_last_detail(size_t *length);

/* COPYRPC_ABI of the library, and its version. */
uint32_t copyrpc_abi(void);
const char *copyrpc_version(void);

/* The numbers that names of services and methods stand for. */
uint16_t copyrpc_service_number(const char *name);
uint16_t copyrpc_method_number(const char *name);

/* ------------------------------------------------------------------------------------- one call at a time */

typedef struct copyrpc_client copyrpc_client;

/* Connects to the daemon whose socket is at `socket`; NULL: the one that COPYRPC_JOB, COPYRPC_INSTANCE and
 * COPYRPC_RUNTIME_DIR name. `timeout_us` is the deadline of calls that have none; 0: five seconds.
 * COPYRPC_INVALID_ARGUMENT: COPYRPC_CLIENT_WAIT says something that has no meaning. */
copyrpc_status copyrpc_client_connect(const char *socket, uint64_t timeout_us, copyrpc_client **client);
void copyrpc_client_free(copyrpc_client *client);

/* Connects again, to the same daemon or its successor. After COPYRPC_ORIGIN_DAEMON_GONE every call fails until this
 * succeeds. */
copyrpc_status copyrpc_client_reconnect(copyrpc_client *client);

/* Calls from now on belong to the trace of this number, of which handlers are told; 0: to none. */
copyrpc_status copyrpc_client_set_trace(copyrpc_client *client, uint64_t trace);

/* Calls, and waits for the answer. `answer` and `answer_length` may be NULL. */
copyrpc_status copyrpc_client_call(copyrpc_client *client, uint32_t rank, uint16_t service, uint16_t method,
                                   const void *body, size_t length, uint64_t timeout_us,
                                   const void **answer, size_t *answer_length);

/* Writes a body of `length` bytes to `room`, which the daemon will read there: all of it, from the first byte to the
 * last. What is not written holds bytes of an earlier body of this process. It must return, and must use neither the
 * handle nor the room afterwards. */
typedef void (*copyrpc_fill)(void *room, size_t length, void *user);

/* As copyrpc_client_call, with a body of `length` bytes that `fill` writes; `fill` may be NULL if `length` is 0. The
 * answer lies where the daemon wrote it, until the next function that gets this client. The daemon can write there
 * all the time: copy what is to be checked, and check the copy. A call is made once. */
copyrpc_status copyrpc_client_call_in_place(copyrpc_client *client, uint32_t rank, uint16_t service,
                                            uint16_t method, size_t length, copyrpc_fill fill, void *user,
                                            uint64_t timeout_us, const void **answer, size_t *answer_length);

/* Rank of this node, and how many there are. */
copyrpc_status copyrpc_client_who(copyrpc_client *client, uint32_t *rank, uint32_t *size);

/* ----------------------------------------------------------------------------------- many calls at a time */

typedef struct copyrpc_pipeline copyrpc_pipeline;

copyrpc_status copyrpc_pipeline_connect(const char *socket, uint64_t timeout_us,
                                        copyrpc_pipeline **pipeline);
void copyrpc_pipeline_free(copyrpc_pipeline *pipeline);

/* As copyrpc_client_set_trace. */
copyrpc_status copyrpc_pipeline_set_trace(copyrpc_pipeline *pipeline, uint64_t trace);

/* Makes a call. COPYRPC_RESOURCE_EXHAUSTED: as many are in flight as there can be; poll first. */
copyrpc_status copyrpc_pipeline_submit(copyrpc_pipeline *pipeline, uint32_t rank, uint16_t service,
                                       uint16_t method, const void *body, size_t length,
                                       uint64_t timeout_us, void *context);

/* As copyrpc_pipeline_submit; `call` gets a number by which copyrpc_pipeline_cancel knows the call. The last place is kept
 * for what tells the daemon of calls that were given up. */
copyrpc_status copyrpc_pipeline_submit_named(copyrpc_pipeline *pipeline, uint32_t rank, uint16_t service,
                                             uint16_t method, const void *body, size_t length, uint64_t timeout_us,
                                             void *context, uint64_t *call);
/* Gives up a call. It is not reported; it may be executed, and whoever executes it is told, as soon as polls find room to
 * say so. Until it has been answered, by a daemon at its deadline at the latest, its place is taken. `context` gets that of
 * its submission, and may be NULL. COPYRPC_NOT_FOUND: the call has ended. */
copyrpc_status copyrpc_pipeline_cancel(copyrpc_pipeline *pipeline, uint64_t call, void **context);

/* Told of a call that ended, with the context of its submission. `body` is the answer, or what the service
 * adds to its status; valid until it returns. It must not use the pipeline. Within it, copyrpc_last_error() and
 * the others tell of that call. */
typedef void (*copyrpc_done)(void *context, copyrpc_status status, const void *body, size_t length,
                             void *user);

/* Reports calls that ended; never waits. `count` may be NULL. */
copyrpc_status copyrpc_pipeline_poll(copyrpc_pipeline *pipeline, copyrpc_done done, void *user,
                                     size_t *count);
/* As copyrpc_pipeline_submit, with a body of `length` bytes that `fill` writes: see copyrpc_client_call_in_place. If it
 * fails, `fill` has not run. */
copyrpc_status copyrpc_pipeline_submit_in_place(copyrpc_pipeline *pipeline, uint32_t rank, uint16_t service,
                                                uint16_t method, size_t length, copyrpc_fill fill, void *user,
                                                uint64_t timeout_us, void *context);
/* As copyrpc_pipeline_poll, with answers where the daemon wrote them, which it can write all the time: copy what is to be
 * checked, and check the copy. */
copyrpc_status copyrpc_pipeline_poll_lent(copyrpc_pipeline *pipeline, copyrpc_done done, void *user,
                                          size_t *count);
/* After a poll that reported nothing: waits until there may be something, at most to the next deadline. */
copyrpc_status copyrpc_pipeline_rest(copyrpc_pipeline *pipeline);
/* Connects again, to the same daemon or its successor. Calls in flight end, and are reported to `done`. If it fails, the
 * pipeline stays as it was; else copyrpc_pipeline_fd() may be another one. */
copyrpc_status copyrpc_pipeline_reconnect(copyrpc_pipeline *pipeline, copyrpc_done done, void *user);
/* Calls in flight, and those that were given up and hold their places; 0 for NULL, and for a handle that another thread
 * uses. */
size_t copyrpc_pipeline_in_flight(const copyrpc_pipeline *pipeline);
/* For poll(2): the descriptor becomes readable when there is something to poll for, if
 * copyrpc_pipeline_arm() said 1; if it said 0, there is something already. -1 for NULL, and for a handle that another
 * thread uses. The descriptor of a daemon that is gone is readable all the time: wait for it only while calls are in
 * flight. */
int copyrpc_pipeline_fd(const copyrpc_pipeline *pipeline);
int copyrpc_pipeline_arm(copyrpc_pipeline *pipeline);
/* How long poll(2) may wait: the time until the next call ends, whether the daemon says something or not. UINT64_MAX: no
 * call is in flight. Exact after copyrpc_pipeline_arm(). */
uint64_t copyrpc_pipeline_time_left_us(const copyrpc_pipeline *pipeline);

/* ------------------------------------------------------------------------------- memory that calls lend
 *
 * A region is memory that a process shares with its daemon. A call lends slices of regions to whoever
 * answers it, who pulls from them and pushes to them by one-sided access; rights end with the call. The rules
 * are in docs/bulk.md.
 *
 * Threads: a region may be read and written by several threads at a time, as far as these agree on ranges; it
 * is freed or forgotten by one, when no other uses it. A child that was forked must not use it. */

typedef struct copyrpc_region copyrpc_region;

/* Zeroed memory of `length` bytes, all of it allocated, which calls of this client can lend. The daemon is asked before
 * it is made. COPYRPC_UNIMPLEMENTED: its NIC lends no memory, now or later. COPYRPC_RESOURCE_EXHAUSTED: this process or
 * the daemon has no room for it now. COPYRPC_OUT_OF_RANGE, COPYRPC_INVALID_ARGUMENT: no region has this length. */
copyrpc_status copyrpc_client_region(copyrpc_client *client, uint64_t length, copyrpc_region **region);
/* Makes a region anew, with the same bytes, if the client has connected again since it was made: the daemon of now does not
 * have it, and calls that lend it get COPYRPC_NOT_FOUND. Nobody else uses the region meanwhile. `renewed`, which may be
 * NULL, gets 1 if it was, else 0. Statuses as of copyrpc_client_region. */
copyrpc_status copyrpc_client_renew(copyrpc_client *client, copyrpc_region *region, int *renewed);
/* Frees a region, and has the daemon forget it. COPYRPC_FAILED_PRECONDITION: slices of it are lent;
 * COPYRPC_NOT_FOUND: the daemon holds no such region of this client. Then the region stays as it is. */
copyrpc_status copyrpc_client_forget(copyrpc_client *client, copyrpc_region *region);
/* Frees a region here; the daemon keeps it until the client, or provider, that made it is freed. */
void copyrpc_region_free(copyrpc_region *region);
uint64_t copyrpc_region_length(const copyrpc_region *region);
/* Copies bytes into it, and out of it; `to` is initialized memory. COPYRPC_OUT_OF_RANGE: they do not lie inside.
 * What is lent to a call that may write it is not to be touched. */
copyrpc_status copyrpc_region_write(const copyrpc_region *region, uint64_t offset, const void *from, size_t length);
copyrpc_status copyrpc_region_read(const copyrpc_region *region, uint64_t offset, void *to, size_t length);

/* A part of a region; `writable`: whoever answers may also push to it. */
typedef struct {
    const copyrpc_region *region;
    uint64_t offset;
    uint64_t length;
    int writable;
} copyrpc_slice;

/* Calls a method of a service that a copyrpc_bulk_provider offers, and waits for the answer. Body and answer
 * have up to 2048 bytes, a call up to 64 slices. A call that ends with COPYRPC_DEADLINE_EXCEEDED or
 * COPYRPC_UNAVAILABLE may have been executed, and its writable slices may still be written until
 * copyrpc_client_reclaim() says that they are not. */
copyrpc_status copyrpc_client_call_bulk(copyrpc_client *client, uint32_t rank, uint16_t service, uint16_t method,
                                        const void *body, size_t length, const copyrpc_slice *slices, size_t count,
                                        uint64_t timeout_us, const void **answer, size_t *answer_length);
/* How many slices of a region are lent to calls, and how many of these may still be written. */
copyrpc_status copyrpc_client_lent(copyrpc_client *client, const copyrpc_region *region, uint64_t *slices,
                                   uint64_t *writable);
/* Waits until none may be written any more. COPYRPC_DEADLINE_EXCEEDED: some still may. */
copyrpc_status copyrpc_client_reclaim(copyrpc_client *client, const copyrpc_region *region, uint64_t timeout_us);

/* Offers a service of calls that lend memory. Everything of a provider is done by one thread at a time, which
 * may have any number of calls and transfers under way. */
typedef struct copyrpc_bulk_provider copyrpc_bulk_provider;
typedef struct copyrpc_work copyrpc_work;

/* `timeout_us` is the deadline of transfers that have none; 0: five seconds. When the daemon is gone,
 * copyrpc_bulk_provider_next() looks for its successor, and offers the service there again. Calls of the old daemon have
 * ended: their transfers fail with COPYRPC_CANCELLED or COPYRPC_UNAVAILABLE, and their answers are dropped. Regions are to
 * be renewed. */
copyrpc_status copyrpc_bulk_provider_offer(const char *socket, uint16_t service, uint64_t timeout_us,
                                           copyrpc_bulk_provider **provider);
/* The same; `flags`: 0, or COPYRPC_OFFER_ENDS_WITH_DAEMON: the daemon is not looked for, and functions fail with
 * COPYRPC_ORIGIN_DAEMON_GONE. */
copyrpc_status copyrpc_bulk_provider_offer_with(const char *socket, uint16_t service, int flags, uint64_t timeout_us,
                                                copyrpc_bulk_provider **provider);
/* Calls that were not answered end with COPYRPC_UNAVAILABLE. */
void copyrpc_bulk_provider_free(copyrpc_bulk_provider *provider);
/* Memory of the provider, that transfers move to and from. Statuses as of copyrpc_client_region. */
copyrpc_status copyrpc_bulk_provider_region(copyrpc_bulk_provider *provider, uint64_t length,
                                            copyrpc_region **region);
/* As copyrpc_client_renew, of a region of the provider: before transfers that move to or from it, which else get
 * COPYRPC_NOT_FOUND. */
copyrpc_status copyrpc_bulk_provider_renew(copyrpc_bulk_provider *provider, copyrpc_region *region, int *renewed);
/* Waits for the next call, at most `timeout_us`, which has no default; `work` is NULL if there was none. */
copyrpc_status copyrpc_bulk_provider_next(copyrpc_bulk_provider *provider, uint64_t timeout_us,
                                          copyrpc_work **work);

uint16_t copyrpc_work_method(const copyrpc_work *work);
uint32_t copyrpc_work_rank(const copyrpc_work *work);
const void *copyrpc_work_body(const copyrpc_work *work, size_t *length);
/* As the functions of a copyrpc_request of these names. The time left is UINT64_MAX, and there are no trace and no caller,
 * if the daemon is of an earlier build. Transfers end with their call, and what is answered after the deadline reaches
 * nobody: the caller was told COPYRPC_DEADLINE_EXCEEDED by its daemon. */
uint64_t copyrpc_work_time_left_us(const copyrpc_work *work);
uint64_t copyrpc_work_trace(const copyrpc_work *work);
int copyrpc_work_caller(const copyrpc_work *work, uint32_t *uid, uint32_t *pid);
/* 1 if nobody waits for the answer any more; asks the daemon each time. 0 for NULL, and for a handle that another thread
 * uses. */
int copyrpc_bulk_provider_is_cancelled(copyrpc_bulk_provider *provider, const copyrpc_work *work);
/* How many slices came with the call, and what each is. */
size_t copyrpc_work_slices(const copyrpc_work *work);
copyrpc_status copyrpc_work_slice(const copyrpc_work *work, size_t slice, uint64_t *length, int *writable);

/* A range of a slice that is moved to own memory, or, with `push`, from it. */
typedef struct {
    uint32_t slice;
    int push;
    uint64_t offset;     /* in the slice */
    uint64_t own_offset; /* in the own region */
    uint64_t length;
} copyrpc_move;

/* Begins to move up to 64 ranges, all with one end. If one of them may not be moved, none is. */
copyrpc_status copyrpc_bulk_provider_begin(copyrpc_bulk_provider *provider, const copyrpc_work *work,
                                           const copyrpc_region *own, const copyrpc_move *moves, size_t count,
                                           uint64_t timeout_us, uint64_t *transfer);
/* Looks whether a transfer has ended. The status is that of a transfer that has, with the bytes it moved; its end
 * is told once. COPYRPC_OUT_OF_RANGE: a range lies outside. COPYRPC_PERMISSION_DENIED: a slice may only be read.
 * COPYRPC_CANCELLED: the call has ended. COPYRPC_DEADLINE_EXCEEDED, COPYRPC_UNAVAILABLE: the caller's node is
 * gone. */
copyrpc_status copyrpc_bulk_provider_look(copyrpc_bulk_provider *provider, uint64_t transfer, int *ended,
                                          uint64_t *moved);
/* Waits for the end of a transfer, which its deadline bounds. */
copyrpc_status copyrpc_bulk_provider_wait(copyrpc_bulk_provider *provider, uint64_t transfer, uint64_t *moved);
/* Bytes that a transfer has moved so far. COPYRPC_NOT_FOUND: it has ended. */
copyrpc_status copyrpc_bulk_provider_progress(copyrpc_bulk_provider *provider, uint64_t transfer, uint64_t *moved);
/* Answers a call, and frees it, unless this returns COPYRPC_INVALID_ARGUMENT. Transfers for it that are under way come to an end first, and begin no more. */
copyrpc_status copyrpc_bulk_provider_answer(copyrpc_bulk_provider *provider, copyrpc_work *work,
                                            copyrpc_status status, const void *body, size_t length);

/* ---------------------------------------------------------------------------------------------- a service */

typedef struct copyrpc_provider copyrpc_provider;
typedef struct copyrpc_request copyrpc_request;

enum {
    COPYRPC_OFFER_SHARED = 1,          /* other processes may offer the service, too; all of them say so */
    COPYRPC_OFFER_ENDS_WITH_DAEMON = 2 /* copyrpc_provider_serve() ends when the daemon is gone */
};

/* Offers a service. `name` may be NULL; `flags`: 0, or some of COPYRPC_OFFER_*; `window`: requests that this process
 * has at a time, 0 for 16. */
copyrpc_status copyrpc_provider_offer(const char *socket, uint16_t service, const char *name, int flags,
                                      size_t window, copyrpc_provider **provider);
/* Withdraws the service. A provider that a thread serves stays as it is: stop it first. */
void copyrpc_provider_free(copyrpc_provider *provider);

/* Given a request, which it answers now or later, here or on another thread, by copyrpc_request_reply(). A request whose
 * deadline has passed by then is answered with COPYRPC_DEADLINE_EXCEEDED, and not given. */
typedef void (*copyrpc_serve)(copyrpc_request *request, void *user);

/* Serves on this thread until the provider is stopped. Once per provider. When the daemon is gone, its successor is
 * looked for as long as the process lives, and the service is offered there again. */
copyrpc_status copyrpc_provider_serve(copyrpc_provider *provider, copyrpc_serve serve, void *user);
/* Ends copyrpc_provider_serve() soon. */
void copyrpc_provider_stop(const copyrpc_provider *provider);

uint16_t copyrpc_request_method(const copyrpc_request *request);
uint32_t copyrpc_request_rank(const copyrpc_request *request);
const void *copyrpc_request_body(const copyrpc_request *request, size_t *length);
/* Until the caller gives up. */
uint64_t copyrpc_request_time_left_us(const copyrpc_request *request);
/* 1 if nobody waits for the answer any more: the caller died, its deadline has passed, or the daemon is gone.
 * A handler that runs long looks now and then, and replies with COPYRPC_CANCELLED. It learns of a caller's
 * death while copyrpc_provider_serve() is not inside copyrpc_serve, so such a handler answers on a thread of
 * its own. Any thread may ask, until it replies. */
int copyrpc_request_is_cancelled(const copyrpc_request *request);
/* Number of the caller's trace; 0: it has none. */
uint64_t copyrpc_request_trace(const copyrpc_request *request);
/* The caller's user and process on its node, where known: 1, else 0. Those of other nodes are what their
 * daemon says. The process is 0 where it is in a PID namespace that its daemon does not see. */
int copyrpc_request_caller(const copyrpc_request *request, uint32_t *uid, uint32_t *pid);
/* Answers, and frees the request. With a status other than COPYRPC_OK, `body` is what the caller is told
 * about it. */
copyrpc_status copyrpc_request_reply(copyrpc_request *request, copyrpc_status status, const void *body,
                                     size_t length);

/* -------------------------------------------------------------------------------- calls without a daemon
 *
 * A worker calls its peers, which are workers of other processes, over a NIC of its own, and serves them.
 *
 * Threads: a worker belongs to the thread that opened it; every function of it refuses other threads with
 * COPYRPC_INVALID_ARGUMENT. Nothing happens between its functions: what is to be sent leaves in
 * copyrpc_worker_next(), and what arrived is found there. */

typedef struct copyrpc_worker copyrpc_worker;

/* `nic`: "soft", "tcp", "ibverbs" or "auto"; NULL: what COPYRPC_NIC says, or "soft". The other variables of a NIC
 * hold, too. */
copyrpc_status copyrpc_worker_open(const char *nic, copyrpc_worker **worker);
/* Requests that were not answered end with COPYRPC_UNAVAILABLE. */
copyrpc_status copyrpc_worker_free(copyrpc_worker *worker);

/* Takes a place for a peer, and says what that must be told: by a socket, a file, whatever there is. `invitation` is
 * valid until the next invitation. */
copyrpc_status copyrpc_worker_invite(copyrpc_worker *worker, uint64_t *peer, const void **invitation, size_t *length);
/* Connects a peer, by what that was told by its own worker. Calls arrive once both have connected. */
copyrpc_status copyrpc_worker_connect(copyrpc_worker *worker, uint64_t peer, const void *invitation, size_t length);
/* Ends a connection: its calls end with COPYRPC_CANCELLED. An event tells when that is done. */
copyrpc_status copyrpc_worker_close(copyrpc_worker *worker, uint64_t peer);

/* Makes a call; its end is an event with its context. `timeout_us`: its deadline; 0: five seconds.
 * COPYRPC_RESOURCE_EXHAUSTED: there is no room now; look for events first. */
copyrpc_status copyrpc_worker_call(copyrpc_worker *worker, uint64_t peer, uint16_t method, const void *body,
                                   size_t length, uint64_t timeout_us, void *context);

enum {
    COPYRPC_EVENT_NONE = 0,      /* there was nothing for that time */
    COPYRPC_EVENT_REQUEST = 1,   /* a peer asks: answer `request` by copyrpc_worker_reply() */
    COPYRPC_EVENT_ENDED = 2,     /* a call has ended; `answered`: the status and the body are the peer's */
    COPYRPC_EVENT_CANCELLED = 3, /* nobody waits for the answer to `request`, which is still to be answered */
    COPYRPC_EVENT_CLOSED = 4     /* the connection to `peer` has ended; the body says why */
};

/* The fields that the kind does not name are 0. */
typedef struct {
    int32_t kind;
    copyrpc_status status; /* ended, closed */
    int answered;          /* ended */
    uint16_t method;       /* request */
    uint64_t peer;         /* request, cancelled, closed */
    uint64_t request;      /* request, cancelled; 0 if that was answered */
    uint64_t timeout_us;   /* request: how long its caller waits, counted from the call */
    void *context;         /* ended */
    const void *body;      /* valid until the next event */
    size_t length;
} copyrpc_event;

/* Sends what was said, and waits for the next event, at most `timeout_us`, which has no default: 0 only looks. */
copyrpc_status copyrpc_worker_next(copyrpc_worker *worker, uint64_t timeout_us, copyrpc_event *event);

/* Answers a request, once. With a status other than COPYRPC_OK, `body` is what the caller is told about it, up to 232
 * bytes. The answer leaves in copyrpc_worker_next(). */
copyrpc_status copyrpc_worker_reply(copyrpc_worker *worker, uint64_t request, copyrpc_status status, const void *body,
                                    size_t length);

#ifdef __cplusplus
}
#endif

#endif
