/* A client of the service `registers` in C: see ../src/registers.rs.
 *
 *   registers SOCKET RANK FIRST_KEY IN_FLIGHT
 *
 * It reads how many calls it is to make, makes them, and writes how many ns they took. */
#include <copyrpc.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { KEYS = 1024, PUT_EVERY = 20, VALUE_BYTES = 64 };

/* Deadline of a call, in microseconds: a daemon that is alive may wait long for a core. */
#define PATIENCE_US 120000000

struct task {
    uint32_t rank, first_key;
    uint16_t service, get, put;
    size_t in_flight;
    uint32_t versions[KEYS];
    uint64_t number;
};

struct call {
    uint16_t method;
    uint64_t answer;
    size_t length;
    unsigned char body[4 + VALUE_BYTES];
};

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, copyrpc_last_error());
    exit(1);
}

static void put_word(unsigned char *value, uint64_t word) {
    for (size_t at = 0; at < VALUE_BYTES; at++)
        value[at] = (unsigned char)(word >> at % 8 * 8);
}

/* The next call of the plan, and the word that its answer consists of. */
static struct call next_call(struct task *task) {
    uint32_t slot = (uint32_t)(task->number % KEYS), key = task->first_key + slot;
    struct call call = {.method = task->get, .answer = key | (uint64_t)task->versions[slot] << 32, .length = 4};
    for (int at = 0; at < 4; at++)
        call.body[at] = (unsigned char)(key >> at * 8);
    if (task->number++ % PUT_EVERY == 0) {
        task->versions[slot]++;
        call.method = task->put;
        call.length += VALUE_BYTES;
        put_word(call.body + 4, key | (uint64_t)task->versions[slot] << 32);
    }
    return call;
}

static void check(uint64_t word, const void *body, size_t length) {
    unsigned char value[VALUE_BYTES];
    put_word(value, word);
    if (length != VALUE_BYTES || memcmp(body, value, VALUE_BYTES) != 0) {
        fputs("wrong answer\n", stderr);
        exit(1);
    }
}

static void one_by_one(struct task *task, copyrpc_client *client, uint64_t count) {
    while (count-- > 0) {
        struct call call = next_call(task);
        const void *answer;
        size_t length;
        if (copyrpc_client_call(client, task->rank, task->service, call.method, call.body, call.length, 0, &answer,
                                &length) != COPYRPC_OK)
            fail("call");
        check(call.answer, answer, length);
    }
}

static void done(void *context, copyrpc_status status, const void *body, size_t length, void *user) {
    (void)user;
    if (status != COPYRPC_OK)
        fail("call");
    check((uint64_t)(uintptr_t)context, body, length);
}

static void pipelined(struct task *task, copyrpc_pipeline *pipeline, uint64_t count) {
    while (count > 0 || copyrpc_pipeline_in_flight(pipeline) > 0) {
        size_t ended = 0;
        for (; count > 0 && copyrpc_pipeline_in_flight(pipeline) < task->in_flight; count--) {
            struct call call = next_call(task);
            if (copyrpc_pipeline_submit(pipeline, task->rank, task->service, call.method, call.body, call.length, 0,
                                        (void *)(uintptr_t)call.answer) != COPYRPC_OK)
                fail("submit");
        }
        if (copyrpc_pipeline_poll(pipeline, done, NULL, &ended) != COPYRPC_OK)
            fail("poll");
        if (ended == 0 && copyrpc_pipeline_rest(pipeline) != COPYRPC_OK)
            fail("rest");
    }
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int main(int argc, char **argv) {
    static struct task task;
    copyrpc_client *client = NULL;
    copyrpc_pipeline *pipeline = NULL;
    uint64_t count;
    if (argc != 5)
        return 2;
    task.rank = (uint32_t)strtoul(argv[2], NULL, 10);
    task.first_key = (uint32_t)strtoul(argv[3], NULL, 10);
    task.in_flight = strtoul(argv[4], NULL, 10);
    task.service = copyrpc_service_number("registers");
    task.get = copyrpc_method_number("get");
    task.put = copyrpc_method_number("put");
    if (task.in_flight == 1 ? copyrpc_client_connect(argv[1], PATIENCE_US, &client) != COPYRPC_OK
                            : copyrpc_pipeline_connect(argv[1], PATIENCE_US, &pipeline) != COPYRPC_OK)
        fail("connect");
    while (scanf("%" SCNu64, &count) == 1) {
        uint64_t begin_ns = now_ns();
        if (client != NULL)
            one_by_one(&task, client, count);
        else
            pipelined(&task, pipeline, count);
        printf("%" PRIu64 "\n", now_ns() - begin_ns);
        fflush(stdout);
    }
    copyrpc_client_free(client);
    copyrpc_pipeline_free(pipeline);
    return 0;
}
