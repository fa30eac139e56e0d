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

static void *answer_later(void *argument) {
    copyrpc_request *request = argument;
    size_t length;
    const void *body;
    usleep(100 * 1000);
    body = copyrpc_request_body(request, &length);
    CHECK(copyrpc_request_reply(request, COPYRPC_OK, body, length) == COPYRPC_OK);
    return NULL;
}

static void serve(copyrpc_request *request, void *user) {
    size_t length;
    const void *body = copyrpc_request_body(request, &length);
    ++*(int *)user;
    CHECK(copyrpc_request_rank(request) == 0);
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

    start = now();
    CHECK(copyrpc_client_call(client, 0, SERVICE, LATER, "x", 1, 10 * 1000, NULL, NULL) == COPYRPC_DEADLINE_EXCEEDED);
    CHECK(now() - start < 0.09);
    CHECK(copyrpc_client_call(client, 0, SERVICE, LATER, "x", 1, 0, &answer, &length) == COPYRPC_OK && length == 1);

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
    }
    CHECK(told.failed == 1);
    CHECK(copyrpc_pipeline_rest(pipeline) == COPYRPC_OK);
    CHECK(copyrpc_pipeline_poll(pipeline, NULL, NULL, NULL) == COPYRPC_INVALID_ARGUMENT);
    copyrpc_pipeline_free(pipeline);
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
    CHECK(pthread_create(&thread, NULL, run_service, &service) == 0);
    client_calls(arguments[1]);
    pipeline_calls(arguments[1]);
    copyrpc_provider_stop(service.provider);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(service.served > 17);
    copyrpc_provider_free(service.provider);
    puts("all holds");
    return 0;
}
