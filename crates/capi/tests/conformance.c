/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * What copyrpc.h promises, against the daemon whose socket is the first argument. Exits with 0 if all holds.
 */
#include "copyrpc.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #condition,                \
                    copyrpc_last_error());                                                        \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

enum { SERVICE = 40, ECHO = 1, FAIL = 2, LATER = 3, WHO = 4 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* The body of a call that is given up. */
enum { GIVEN_UP = 3 };

/* Requests whose callers did not wait when they were answered. */
static int cancelled;

static void *answer_later(void *argument) {
    copyrpc_request *request = argument;
    size_t length;
    const void *body;
    usleep(100 * 1000);
    body = copyrpc_request_body(request, &length);
    if (copyrpc_request_is_cancelled(request)) {
        CHECK(copyrpc_request_time_left_us(request) == 0 || *(const unsigned char *)body == GIVEN_UP);
        __atomic_add_fetch(&cancelled, 1, __ATOMIC_RELAXED);
    }
    CHECK(copyrpc_request_reply(request, COPYRPC_OK, body, length) == COPYRPC_OK);
    return NULL;
}

static void serve(copyrpc_request *request, void *user) {
    size_t length;
    const void *body = copyrpc_request_body(request, &length);
    ++*(int *)user;
    CHECK(copyrpc_request_rank(request) == 0 && copyrpc_request_trace(request) == 0);
    CHECK(copyrpc_request_is_cancelled(NULL) == 0);
    CHECK(copyrpc_request_time_left_us(request) <= UINT64_C(3600000000));
    switch (copyrpc_request_method(request)) {
    case FAIL:
        CHECK(copyrpc_request_reply(request, COPYRPC_NOT_FOUND, "no such key", 11) == COPYRPC_OK);
        break;
    case LATER: {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, answer_later, request) == 0);
        pthread_detach(thread);
        break;
    }
    case WHO: {
        uint32_t who[2];
        CHECK(copyrpc_request_caller(request, &who[0], &who[1]) == 1);
        CHECK(copyrpc_request_reply(request, COPYRPC_OK, who, sizeof who) == COPYRPC_OK);
        break;
    }
    default:
        CHECK(copyrpc_request_reply(request, COPYRPC_OK, body, length) == COPYRPC_OK);
    }
}

struct service {
    copyrpc_provider *provider;
    int served;
};

static void *run_service(void *argument) {
    struct service *service = argument;
    CHECK(copyrpc_provider_serve(service->provider, serve, &service->served) == COPYRPC_OK);
    /* Once per provider. */
    CHECK(copyrpc_provider_serve(service->provider, serve, &service->served) == COPYRPC_INVALID_ARGUMENT);
    return NULL;
}

static void client_calls(const char *socket) {
    copyrpc_client *client = NULL;
    const void *answer;
    size_t length;
    uint32_t rank, size, who[2];
    double start;
    int late;
    CHECK(copyrpc_client_connect(socket, 0, &client) == COPYRPC_OK);
    CHECK(copyrpc_client_who(client, &rank, &size) == COPYRPC_OK && rank == 0 && size == 1);
    CHECK(copyrpc_client_call(client, COPYRPC_HERE, SERVICE, ECHO, "hello", 5, 0, &answer, &length) == COPYRPC_OK);
    CHECK(length == 5 && memcmp(answer, "hello", 5) == 0);
    CHECK(copyrpc_last_origin() == COPYRPC_ORIGIN_NONE && copyrpc_last_error()[0] == 0);
    CHECK(copyrpc_client_call(client, 0, SERVICE, WHO, NULL, 0, 0, &answer, &length) == COPYRPC_OK);
    memcpy(who, answer, sizeof who);
    CHECK(who[0] == getuid() && who[1] == (uint32_t)getpid());

    CHECK(copyrpc_client_call(client, 0, SERVICE, FAIL, NULL, 0, 0, NULL, NULL) == COPYRPC_NOT_FOUND);
    CHECK(copyrpc_last_origin() == COPYRPC_ORIGIN_SERVICE && copyrpc_last_not_executed() == 0);
    answer = copyrpc_last_detail(&length);
    CHECK(length == 11 && memcmp(answer, "no such key", 11) == 0);
    CHECK(copyrpc_client_call(client, 0, 41, ECHO, NULL, 0, 0, NULL, NULL) == COPYRPC_UNIMPLEMENTED);
    CHECK(copyrpc_last_origin() == COPYRPC_ORIGIN_NO_SERVICE && copyrpc_last_not_executed() == 1);
    CHECK(copyrpc_client_call(client, 9, SERVICE, ECHO, NULL, 0, 0, NULL, NULL) == COPYRPC_NOT_FOUND);
    CHECK(copyrpc_last_origin() == COPYRPC_ORIGIN_NO_RANK);

    /* On a busy machine the deadline may pass before the service has the request. */
    start = now();
    while (__atomic_load_n(&cancelled, __ATOMIC_RELAXED) == 0) {
        double begin = now();
        CHECK(begin - start < 30);
        CHECK(copyrpc_client_call(client, 0, SERVICE, LATER, "x", 1, 20 * 1000, NULL, NULL) == COPYRPC_DEADLINE_EXCEEDED);
        CHECK(now() - begin < 2);
        usleep(200 * 1000);
    }
    late = __atomic_load_n(&cancelled, __ATOMIC_RELAXED);
    CHECK(copyrpc_client_call(client, 0, SERVICE, LATER, "x", 1, 0, &answer, &length) == COPYRPC_OK && length == 1);
    CHECK(__atomic_load_n(&cancelled, __ATOMIC_RELAXED) == late);

    CHECK(copyrpc_client_call(NULL, 0, SERVICE, ECHO, NULL, 0, 0, NULL, NULL) == COPYRPC_INVALID_ARGUMENT);
    CHECK(copyrpc_client_call(client, 0, SERVICE, ECHO, NULL, 5, 0, NULL, NULL) == COPYRPC_INVALID_ARGUMENT);
    CHECK(copyrpc_last_origin() == COPYRPC_ORIGIN_LIBRARY);
    CHECK(copyrpc_client_reconnect(client) == COPYRPC_OK);
    CHECK(copyrpc_client_call(client, 0, SERVICE, ECHO, "again", 5, 0, &answer, &length) == COPYRPC_OK);
    copyrpc_client_free(client);
    copyrpc_client_free(NULL);
    CHECK(copyrpc_client_connect("/nonexistent/x.sock", 0, &client) == COPYRPC_UNAVAILABLE);
    CHECK(copyrpc_last_error()[0] != 0);
}

static void count_up(void *room, size_t length, void *user) {
    unsigned char *byte = room;
    ++*(int *)user;
    while (length-- > 0) {
        *byte++ = (unsigned char)length;
    }
}

static void calls_in_place(const char *socket) {
    enum { LONG = 3000 };
    unsigned char expected[LONG], copy[LONG];
    copyrpc_client *client = NULL;
    const void *answer;
    size_t length, at;
    int filled = 0;
    for (at = 0; at < LONG; ++at) {
        expected[at] = (unsigned char)(LONG - 1 - at);
    }
    CHECK(copyrpc_client_connect(socket, 0, &client) == COPYRPC_OK);
    CHECK(copyrpc_client_call_in_place(client, 0, SERVICE, ECHO, LONG, count_up, &filled, 0, &answer, &length) == COPYRPC_OK);
    CHECK(filled == 1 && length == LONG);
    memcpy(copy, answer, LONG);
    CHECK(memcmp(copy, expected, LONG) == 0);
    CHECK(copyrpc_client_call_in_place(client, 0, SERVICE, ECHO, 0, NULL, NULL, 0, &answer, &length) == COPYRPC_OK);
    CHECK(length == 0);
    CHECK(copyrpc_client_call_in_place(client, 0, SERVICE, FAIL, 0, NULL, NULL, 0, NULL, NULL) == COPYRPC_NOT_FOUND);
    CHECK(copyrpc_last_origin() == COPYRPC_ORIGIN_SERVICE);
    CHECK(copyrpc_client_call_in_place(client, 0, SERVICE, ECHO, 1, NULL, NULL, 0, NULL, NULL) == COPYRPC_INVALID_ARGUMENT);
    CHECK(copyrpc_client_call_in_place(client, 0, SERVICE, ECHO, (size_t)1 << 30, count_up, &filled, 0, NULL, NULL) == COPYRPC_OUT_OF_RANGE);
    CHECK(copyrpc_client_call_in_place(NULL, 0, SERVICE, ECHO, 1, count_up, &filled, 0, NULL, NULL) == COPYRPC_INVALID_ARGUMENT);
    CHECK(filled == 1);
    copyrpc_client_free(client);
}

struct told {
    unsigned char seen[16];
    int failed;
};

static void done(void *context, copyrpc_status status, const void *body, size_t length, void *user) {
    struct told *told = user;
    unsigned char number = (unsigned char)(uintptr_t)context;
    if (status == COPYRPC_OK) {
        CHECK(length == 1 && *(const unsigned char *)body == number);
        ++told->seen[number];
    } else {
        CHECK(status == COPYRPC_NOT_FOUND && length == 11);
        ++told->failed;
    }
}

static void put_byte(void *room, size_t length, void *user) {
    CHECK(length == 1);
    memcpy(room, user, 1);
}

/* What is given up is not reported, and its place comes back. */
static void gives_up(copyrpc_pipeline *pipeline, struct told *told) {
    uint64_t call = 0, other = 0;
    void *context = NULL;
    size_t count;
    unsigned char number = GIVEN_UP;
    CHECK(copyrpc_pipeline_submit_named(pipeline, 0, SERVICE, LATER, &number, 1, 0, told, &call) == COPYRPC_OK);
    number = 0;
    CHECK(copyrpc_pipeline_submit_named(pipeline, 0, SERVICE, ECHO, &number, 1, 0, NULL, &other) == COPYRPC_OK);
    CHECK(call != 0 && other != call);
    CHECK(copyrpc_pipeline_cancel(pipeline, call, &context) == COPYRPC_OK && context == told);
    CHECK(copyrpc_pipeline_cancel(pipeline, call, NULL) == COPYRPC_NOT_FOUND);
    CHECK(copyrpc_pipeline_in_flight(pipeline) == 2);
    while (copyrpc_pipeline_in_flight(pipeline) > 0) {
        CHECK(copyrpc_pipeline_poll(pipeline, done, told, &count) == COPYRPC_OK);
        if (count == 0) {
            CHECK(copyrpc_pipeline_rest(pipeline) == COPYRPC_OK);
        }
    }
    CHECK(told->seen[0] == 3 && told->seen[GIVEN_UP] == 2);
    CHECK(copyrpc_pipeline_cancel(pipeline, other, NULL) == COPYRPC_NOT_FOUND);
    CHECK(copyrpc_pipeline_submit_named(NULL, 0, SERVICE, ECHO, NULL, 0, 0, NULL, &call) == COPYRPC_INVALID_ARGUMENT);
    CHECK(copyrpc_pipeline_cancel(NULL, call, NULL) == COPYRPC_INVALID_ARGUMENT);
}

static void pipeline_calls(const char *socket) {
    copyrpc_pipeline *pipeline = NULL;
    struct told told = {{0}, 0};
    size_t count;
    unsigned char number;
    CHECK(copyrpc_pipeline_connect(socket, 0, &pipeline) == COPYRPC_OK);
    for (number = 0; number < 16; ++number) {
        uint16_t method = number % 4 == 0 ? LATER : ECHO;
        CHECK(copyrpc_pipeline_submit(pipeline, 0, SERVICE, method, &number, 1, 0, (void *)(uintptr_t)number) == COPYRPC_OK);
    }
    CHECK(copyrpc_pipeline_submit(pipeline, 0, SERVICE, FAIL, NULL, 0, 0, NULL) == COPYRPC_OK);
    while (copyrpc_pipeline_in_flight(pipeline) > 0) {
        CHECK(copyrpc_pipeline_poll(pipeline, done, &told, &count) == COPYRPC_OK);
        if (count == 0 && copyrpc_pipeline_arm(pipeline)) {
            struct pollfd readable = {copyrpc_pipeline_fd(pipeline), POLLIN, 0};
            CHECK(poll(&readable, 1, 5000) >= 0);
        }
    }
    for (number = 0; number < 16; ++number) {
        CHECK(told.seen[number] == 1);
        CHECK(copyrpc_pipeline_submit_in_place(pipeline, 0, SERVICE, ECHO, 1, put_byte, &number, 0, (void *)(uintptr_t)number) == COPYRPC_OK);
    }
    CHECK(told.failed == 1);
    CHECK(copyrpc_pipeline_submit_in_place(pipeline, 0, SERVICE, ECHO, 1, NULL, NULL, 0, NULL) == COPYRPC_INVALID_ARGUMENT);
    CHECK(copyrpc_pipeline_submit(pipeline, 0, SERVICE, FAIL, NULL, 0, 0, NULL) == COPYRPC_OK);
    while (copyrpc_pipeline_in_flight(pipeline) > 0) {
        CHECK(copyrpc_pipeline_poll_lent(pipeline, done, &told, &count) == COPYRPC_OK);
        if (count == 0) {
            CHECK(copyrpc_pipeline_rest(pipeline) == COPYRPC_OK);
        }
    }
    for (number = 0; number < 16; ++number) {
        CHECK(told.seen[number] == 2);
    }
    CHECK(told.failed == 2);
    gives_up(pipeline, &told);
    CHECK(copyrpc_pipeline_poll_lent(pipeline, NULL, NULL, NULL) == COPYRPC_INVALID_ARGUMENT);
    CHECK(copyrpc_pipeline_rest(pipeline) == COPYRPC_OK);
    CHECK(copyrpc_pipeline_poll(pipeline, NULL, NULL, NULL) == COPYRPC_INVALID_ARGUMENT);
    copyrpc_pipeline_free(pipeline);
}

enum { BULK = 50, REVERSE = 1, REFUSED = 2, LINGER = 3, TRACE = 77, MEGABYTE = 1 << 20 };

/* Pulls the first slice, pushes it back reversed into the second one; and moves what it may not. */
static void answer_bulk(copyrpc_bulk_provider *provider, copyrpc_region *own, copyrpc_work *work) {
    size_t count, at;
    uint64_t length, moved, transfer;
    int writable, ended = 0;
    const void *body = copyrpc_work_body(work, &count);
    copyrpc_move move = {0, 0, 0, 0, 0};
    uint32_t uid = 0, pid = 0;
    CHECK(count == 4 && memcmp(body, "bulk", 4) == 0 && copyrpc_work_rank(work) == 0);
    CHECK(copyrpc_work_caller(work, &uid, &pid) == 1 && uid == getuid() && pid == (uint32_t)getpid());
    CHECK(copyrpc_work_trace(work) == TRACE && copyrpc_work_time_left_us(work) <= 30 * 1000 * 1000);
    CHECK(copyrpc_bulk_provider_is_cancelled(provider, NULL) == 0);
    if (copyrpc_work_method(work) == LINGER) {
        /* Rights end with the deadline, and nobody hears of what is said afterwards. */
        while (!copyrpc_bulk_provider_is_cancelled(provider, work)) {
            usleep(1000);
        }
        CHECK(copyrpc_bulk_provider_begin(provider, work, own, &move, 1, 0, &transfer) == COPYRPC_CANCELLED);
        CHECK(copyrpc_bulk_provider_answer(provider, work, COPYRPC_NOT_FOUND, "late", 4) == COPYRPC_OK);
        return;
    }
    CHECK(copyrpc_bulk_provider_is_cancelled(provider, work) == 0);
    CHECK(copyrpc_work_slices(work) == 2);
    CHECK(copyrpc_work_slice(work, 0, &length, &writable) == COPYRPC_OK && length == MEGABYTE && !writable);
    CHECK(copyrpc_work_slice(work, 1, &length, &writable) == COPYRPC_OK && length == MEGABYTE && writable);
    CHECK(copyrpc_work_slice(work, 2, &length, &writable) == COPYRPC_INVALID_ARGUMENT);
    move.length = length;
    if (copyrpc_work_method(work) == REFUSED) {
        move.push = 1;
        CHECK(copyrpc_bulk_provider_begin(provider, work, own, &move, 1, 0, &transfer) == COPYRPC_OK);
        CHECK(copyrpc_bulk_provider_wait(provider, transfer, &moved) == COPYRPC_PERMISSION_DENIED);
        CHECK(copyrpc_bulk_provider_wait(provider, transfer, &moved) == COPYRPC_INVALID_ARGUMENT);
        move.slice = 1;
        move.offset = 1;
        CHECK(copyrpc_bulk_provider_begin(provider, work, own, &move, 1, 0, &transfer) == COPYRPC_OK);
        CHECK(copyrpc_bulk_provider_wait(provider, transfer, &moved) == COPYRPC_OUT_OF_RANGE);
        CHECK(copyrpc_bulk_provider_answer(provider, work, COPYRPC_ABORTED, "no", 2) == COPYRPC_OK);
        return;
    }
    CHECK(copyrpc_bulk_provider_begin(provider, work, own, &move, 1, 30 * 1000 * 1000, &transfer) == COPYRPC_OK);
    while (!ended) {
        copyrpc_status far = copyrpc_bulk_provider_progress(provider, transfer, &moved);
        CHECK(far == COPYRPC_NOT_FOUND || (far == COPYRPC_OK && moved <= length));
        CHECK(copyrpc_bulk_provider_look(provider, transfer, &ended, &moved) == COPYRPC_OK);
    }
    CHECK(moved == length);
    {
        unsigned char *bytes = malloc(MEGABYTE);
        CHECK(bytes != NULL);
        memset(bytes, 0, MEGABYTE);
        CHECK(copyrpc_region_read(own, 0, bytes, MEGABYTE) == COPYRPC_OK);
        for (at = 0; at < MEGABYTE / 2; ++at) {
            unsigned char byte = bytes[at];
            bytes[at] = bytes[MEGABYTE - 1 - at];
            bytes[MEGABYTE - 1 - at] = byte;
        }
        CHECK(copyrpc_region_write(own, 0, bytes, MEGABYTE) == COPYRPC_OK);
        free(bytes);
    }
    move.slice = 1;
    move.push = 1;
    CHECK(copyrpc_bulk_provider_begin(provider, work, own, &move, 1, 0, &transfer) == COPYRPC_OK);
    CHECK(copyrpc_bulk_provider_wait(provider, transfer, &moved) == COPYRPC_OK && moved == length);
    CHECK(copyrpc_bulk_provider_answer(provider, work, COPYRPC_OK, "reversed", 8) == COPYRPC_OK);
}

/* Answers three calls. */
static void *run_bulk(void *argument) {
    copyrpc_bulk_provider *provider = argument;
    copyrpc_region *own = NULL;
    copyrpc_work *work;
    int answered = 0;
    double start = now();
    CHECK(copyrpc_bulk_provider_region(provider, MEGABYTE, &own) == COPYRPC_OK);
    while (answered < 3) {
        CHECK(now() - start < 60);
        CHECK(copyrpc_bulk_provider_next(provider, 10 * 1000, &work) == COPYRPC_OK);
        if (work != NULL) {
            answer_bulk(provider, own, work);
            ++answered;
        }
    }
    copyrpc_region_free(own);
    return NULL;
}

static void bulk_calls(const char *socket) {
    copyrpc_bulk_provider *provider = NULL;
    copyrpc_client *client = NULL;
    copyrpc_region *region = NULL;
    copyrpc_slice slices[2];
    pthread_t thread;
    const void *answer;
    size_t length, at;
    uint64_t lent, open;
    unsigned char bytes[3] = {1, 2, 3};
    const uint64_t patience = 30 * 1000 * 1000;
    CHECK(copyrpc_bulk_provider_offer(socket, BULK, 0, &provider) == COPYRPC_OK);
    CHECK(copyrpc_bulk_provider_offer(socket, BULK, 0, &provider) == COPYRPC_ALREADY_EXISTS);
    CHECK(pthread_create(&thread, NULL, run_bulk, provider) == 0);
    CHECK(copyrpc_client_connect(socket, 0, &client) == COPYRPC_OK);
    CHECK(copyrpc_client_set_trace(client, TRACE) == COPYRPC_OK);
    CHECK(copyrpc_client_set_trace(NULL, TRACE) == COPYRPC_INVALID_ARGUMENT);
    CHECK(copyrpc_pipeline_set_trace(NULL, TRACE) == COPYRPC_INVALID_ARGUMENT);
    CHECK(copyrpc_client_region(client, 2 * MEGABYTE, &region) == COPYRPC_OK);
    CHECK(copyrpc_region_length(region) == 2 * MEGABYTE);
    CHECK(copyrpc_region_write(region, 0, bytes, 3) == COPYRPC_OK);
    CHECK(copyrpc_region_write(region, 2 * MEGABYTE - 2, bytes, 3) == COPYRPC_OUT_OF_RANGE);
    for (at = 0; at < 2; ++at) {
        slices[at].region = region;
        slices[at].offset = at * MEGABYTE;
        slices[at].length = MEGABYTE;
        slices[at].writable = at == 1;
    }
    CHECK(copyrpc_client_call_bulk(client, 0, BULK, REVERSE, "bulk", 4, slices, 2, patience, &answer, &length) == COPYRPC_OK);
    CHECK(length == 8 && memcmp(answer, "reversed", 8) == 0);
    CHECK(copyrpc_region_read(region, 2 * MEGABYTE - 3, bytes, 3) == COPYRPC_OK);
    CHECK(bytes[0] == 3 && bytes[1] == 2 && bytes[2] == 1);
    CHECK(copyrpc_client_call_bulk(client, 0, BULK, REFUSED, "bulk", 4, slices, 2, patience, NULL, NULL) == COPYRPC_ABORTED);
    CHECK(copyrpc_client_call_bulk(client, 0, BULK, LINGER, "bulk", 4, slices, 2, 100 * 1000, NULL, NULL) == COPYRPC_DEADLINE_EXCEEDED);
    CHECK(copyrpc_last_origin() != COPYRPC_ORIGIN_SERVICE);
    CHECK(copyrpc_client_reclaim(client, region, patience) == COPYRPC_OK);
    CHECK(copyrpc_client_lent(client, region, &lent, &open) == COPYRPC_OK && open == 0);
    slices[0].length = 3 * MEGABYTE;
    CHECK(copyrpc_client_call_bulk(client, 0, BULK, REVERSE, "bulk", 4, slices, 2, patience, NULL, NULL) == COPYRPC_OUT_OF_RANGE);
    slices[0].region = NULL;
    CHECK(copyrpc_client_call_bulk(client, 0, BULK, REVERSE, "bulk", 4, slices, 2, patience, NULL, NULL) == COPYRPC_INVALID_ARGUMENT);
    CHECK(copyrpc_client_call_bulk(client, 0, BULK + 1, REVERSE, NULL, 0, NULL, 0, patience, NULL, NULL) == COPYRPC_UNIMPLEMENTED);
    CHECK(copyrpc_client_forget(client, NULL) == COPYRPC_INVALID_ARGUMENT);
    CHECK(copyrpc_client_forget(client, region) == COPYRPC_OK);
    CHECK(pthread_join(thread, NULL) == 0);
    copyrpc_bulk_provider_free(provider);
    copyrpc_client_free(client);
}

enum { PEERS = 2, CALLS = 100 };

/* Answers a request with its bytes in reverse, or not at all. */
static void serve_peer(copyrpc_worker *worker, const copyrpc_event *request) {
    char body[64];
    size_t at;
    CHECK(request->length <= sizeof body);
    for (at = 0; at < request->length; ++at) {
        body[at] = ((const char *)request->body)[request->length - 1 - at];
    }
    if (request->method == FAIL) {
        CHECK(copyrpc_worker_reply(worker, request->request, COPYRPC_NOT_FOUND, "no such key", 11) == COPYRPC_OK);
    } else if (request->method == ECHO) {
        CHECK(copyrpc_worker_reply(worker, request->request, COPYRPC_OK, body, request->length) == COPYRPC_OK);
        CHECK(copyrpc_worker_reply(worker, request->request, COPYRPC_OK, NULL, 0) == COPYRPC_INVALID_ARGUMENT);
    }
}

static void *other_thread(void *argument) {
    copyrpc_event event;
    CHECK(copyrpc_worker_next(argument, 0, &event) == COPYRPC_INVALID_ARGUMENT);
    return NULL;
}

static void worker_calls(void) {
    copyrpc_worker *workers[PEERS] = {NULL, NULL};
    uint64_t peers[PEERS], late = 0;
    unsigned char invitations[PEERS][512];
    size_t lengths[PEERS], number, side, ended = 0, answered = 0, failed = 0;
    int missed = 0, cancelled_too = 0, closed = 0;
    copyrpc_event event;
    pthread_t thread;
    double start = now();
    for (side = 0; side < PEERS; ++side) {
        const void *invitation;
        CHECK(copyrpc_worker_open("soft", &workers[side]) == COPYRPC_OK);
        CHECK(copyrpc_worker_invite(workers[side], &peers[side], &invitation, &lengths[side]) == COPYRPC_OK);
        CHECK(lengths[side] <= sizeof invitations[side]);
        memcpy(invitations[side], invitation, lengths[side]);
    }
    CHECK(copyrpc_worker_connect(workers[0], peers[0], invitations[1], 3) == COPYRPC_INVALID_ARGUMENT);
    CHECK(copyrpc_worker_connect(workers[0], 77, invitations[1], lengths[1]) == COPYRPC_INVALID_ARGUMENT);
    for (side = 0; side < PEERS; ++side) {
        CHECK(copyrpc_worker_connect(workers[side], peers[side], invitations[1 - side], lengths[1 - side]) == COPYRPC_OK);
    }
    CHECK(pthread_create(&thread, NULL, other_thread, workers[0]) == 0 && pthread_join(thread, NULL) == 0);
    for (number = 1; number <= CALLS; ++number) {
        uint16_t method = number % 10 == 0 ? FAIL : ECHO;
        CHECK(copyrpc_worker_call(workers[0], peers[0], method, "abc", 3, 60 * 1000 * 1000, (void *)number) == COPYRPC_OK);
    }
    /* Nobody answers that. */
    CHECK(copyrpc_worker_call(workers[0], peers[0], LATER, NULL, 0, 50 * 1000, NULL) == COPYRPC_OK);
    while (ended < CALLS + 1 || !cancelled_too) {
        CHECK(now() - start < 60);
        CHECK(copyrpc_worker_next(workers[1], 0, &event) == COPYRPC_OK);
        if (event.kind == COPYRPC_EVENT_REQUEST) {
            CHECK(event.peer == peers[1] && event.timeout_us > 0);
            late = event.method == LATER ? event.request : late;
            serve_peer(workers[1], &event);
        } else if (event.kind == COPYRPC_EVENT_CANCELLED) {
            CHECK(event.request == late && late != 0);
            CHECK(copyrpc_worker_reply(workers[1], late, COPYRPC_CANCELLED, NULL, 0) == COPYRPC_OK);
            cancelled_too = 1;
        } else {
            CHECK(event.kind == COPYRPC_EVENT_NONE);
        }
        CHECK(copyrpc_worker_next(workers[0], 1000, &event) == COPYRPC_OK);
        if (event.kind != COPYRPC_EVENT_ENDED) {
            CHECK(event.kind == COPYRPC_EVENT_NONE);
            continue;
        }
        ++ended;
        if (event.context == NULL) {
            CHECK(event.status == COPYRPC_DEADLINE_EXCEEDED && !event.answered);
            missed = 1;
        } else if ((size_t)event.context % 10 == 0) {
            CHECK(event.status == COPYRPC_NOT_FOUND && event.answered && event.length == 11);
            ++failed;
        } else {
            CHECK(event.status == COPYRPC_OK && event.length == 3 && memcmp(event.body, "cba", 3) == 0);
            ++answered;
        }
    }
    CHECK(missed && failed == CALLS / 10 && answered == CALLS - CALLS / 10);
    CHECK(copyrpc_worker_call(workers[0], peers[0], LATER, NULL, 0, 0, &event) == COPYRPC_OK);
    CHECK(copyrpc_worker_close(workers[0], peers[0]) == COPYRPC_OK);
    for (ended = 0; !closed || ended == 0;) {
        CHECK(now() - start < 60);
        CHECK(copyrpc_worker_next(workers[0], 10 * 1000, &event) == COPYRPC_OK);
        if (event.kind == COPYRPC_EVENT_ENDED) {
            CHECK(event.status == COPYRPC_CANCELLED && event.context == &event);
            ++ended;
        } else if (event.kind == COPYRPC_EVENT_CLOSED) {
            CHECK(event.peer == peers[0] && event.length > 0);
            closed = 1;
        }
    }
    CHECK(copyrpc_worker_call(workers[0], peers[0], ECHO, NULL, 0, 0, NULL) == COPYRPC_INVALID_ARGUMENT);
    CHECK(copyrpc_worker_next(workers[0], 0, NULL) == COPYRPC_INVALID_ARGUMENT);
    for (side = 0; side < PEERS; ++side) {
        CHECK(copyrpc_worker_free(workers[side]) == COPYRPC_OK);
    }
    CHECK(copyrpc_worker_free(NULL) == COPYRPC_OK);
    CHECK(copyrpc_worker_open("no such nic", &workers[0]) == COPYRPC_UNAVAILABLE && copyrpc_last_error()[0] != 0);
}

struct shared_handle {
    copyrpc_client *client;
    copyrpc_pipeline *pipeline;
    int is_over;
};

/* Is inside a call most of the time. */
static void *call_until_over(void *argument) {
    struct shared_handle *shared = argument;
    while (!__atomic_load_n(&shared->is_over, __ATOMIC_ACQUIRE)) {
        copyrpc_status status =
            copyrpc_client_call(shared->client, 0, SERVICE, LATER, "x", 1, 60 * 1000 * 1000, NULL, NULL);
        CHECK(status == COPYRPC_OK || status == COPYRPC_FAILED_PRECONDITION);
    }
    return NULL;
}

static void use_while_reported(void *context, copyrpc_status status, const void *body, size_t length, void *user) {
    struct shared_handle *shared = user;
    (void)context, (void)body, (void)length;
    CHECK(status == COPYRPC_OK);
    CHECK(copyrpc_pipeline_rest(shared->pipeline) == COPYRPC_FAILED_PRECONDITION);
    CHECK(copyrpc_pipeline_in_flight(shared->pipeline) == 0 && copyrpc_pipeline_fd(shared->pipeline) == -1);
}

/* Two threads in one handle are an error, and so is a callback that uses its own. */
static void one_handle_in_two_threads(const char *socket) {
    struct shared_handle shared = {NULL, NULL, 0};
    pthread_t thread;
    size_t count = 0;
    double start = now();
    CHECK(copyrpc_client_connect(socket, 0, &shared.client) == COPYRPC_OK);
    CHECK(pthread_create(&thread, NULL, call_until_over, &shared) == 0);
    while (copyrpc_client_who(shared.client, NULL, NULL) != COPYRPC_FAILED_PRECONDITION) {
        CHECK(now() - start < 60);
    }
    CHECK(copyrpc_last_origin() == COPYRPC_ORIGIN_LIBRARY && copyrpc_last_not_executed() == 1);
    CHECK(strstr(copyrpc_last_error(), "one thread at a time") != NULL);
    /* It is not freed below the other thread. */
    while (copyrpc_client_who(shared.client, NULL, NULL) != COPYRPC_FAILED_PRECONDITION) {
        CHECK(now() - start < 60);
    }
    copyrpc_client_free(shared.client);
    CHECK(copyrpc_last_origin() == COPYRPC_ORIGIN_LIBRARY);
    __atomic_store_n(&shared.is_over, 1, __ATOMIC_RELEASE);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(copyrpc_client_who(shared.client, NULL, NULL) == COPYRPC_OK);
    copyrpc_client_free(shared.client);
    CHECK(copyrpc_last_origin() == COPYRPC_ORIGIN_NONE);

    CHECK(copyrpc_pipeline_connect(socket, 0, &shared.pipeline) == COPYRPC_OK);
    CHECK(copyrpc_pipeline_time_left_us(shared.pipeline) == UINT64_MAX);
    CHECK(copyrpc_pipeline_time_left_us(NULL) == UINT64_MAX);
    CHECK(copyrpc_pipeline_submit(shared.pipeline, 0, SERVICE, ECHO, "x", 1, 60 * 1000 * 1000, NULL) == COPYRPC_OK);
    if (copyrpc_pipeline_arm(shared.pipeline) == 1) {
        uint64_t left_us = copyrpc_pipeline_time_left_us(shared.pipeline);
        CHECK(left_us > 0 && left_us <= 120 * 1000 * 1000);
    }
    while (count == 0) {
        CHECK(now() - start < 60);
        CHECK(copyrpc_pipeline_poll(shared.pipeline, use_while_reported, &shared, &count) == COPYRPC_OK);
    }
    CHECK(copyrpc_pipeline_reconnect(shared.pipeline, NULL, NULL) == COPYRPC_INVALID_ARGUMENT);
    CHECK(copyrpc_pipeline_reconnect(shared.pipeline, use_while_reported, &shared) == COPYRPC_OK);
    copyrpc_pipeline_free(shared.pipeline);
}

int main(int count, char **arguments) {
    struct service service = {NULL, 0};
    copyrpc_provider *second = NULL;
    pthread_t thread;
    CHECK(count == 2);
    CHECK(copyrpc_abi() == COPYRPC_ABI && copyrpc_version()[0] != 0);
    CHECK(copyrpc_service_number("metadata") != 0);
    CHECK(copyrpc_method_number("stat") == copyrpc_method_number("stat"));
    CHECK(copyrpc_provider_offer(arguments[1], SERVICE, "conformance", 0, 4, &service.provider) == COPYRPC_OK);
    CHECK(copyrpc_provider_offer(arguments[1], SERVICE, NULL, 0, 0, &second) == COPYRPC_ALREADY_EXISTS);
    CHECK(copyrpc_provider_offer(arguments[1], SERVICE + 9, NULL, 4, 0, &second) == COPYRPC_INVALID_ARGUMENT);
    CHECK(pthread_create(&thread, NULL, run_service, &service) == 0);
    client_calls(arguments[1]);
    /* It serves, so it stays. */
    copyrpc_provider_free(service.provider);
    CHECK(copyrpc_last_origin() == COPYRPC_ORIGIN_LIBRARY);
    calls_in_place(arguments[1]);
    pipeline_calls(arguments[1]);
    one_handle_in_two_threads(arguments[1]);
    bulk_calls(arguments[1]);
    worker_calls();
    copyrpc_provider_stop(service.provider);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(service.served > 17);
    copyrpc_provider_free(service.provider);
    puts("all holds");
    return 0;
}
