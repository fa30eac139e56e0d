/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A client, or a provider, that does as it is told: by lines on standard input, and says on standard output what came of
 * it. The scenarios are those of scenarios.rs and providers.rs; foreign.rs has the lines.
 *
 *     driver client | driver pipeline | driver lending
 *     driver serve|threads|lending SOCKET SERVICE
 */
#include "copyrpc.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CALLS_MAX = 1024, LINE_MAX_BYTES = 256, THREADS = 4, EACH = 50, REGION_BYTES = 4096 };

static copyrpc_client *client;
static copyrpc_pipeline *pipeline;
static int is_pipeline, is_lending;
/* What the calls of a client lend, if they do. */
static copyrpc_region *region;

/* Calls of the pipeline, by the number that the scenario gave them. */
static struct {
    uint64_t name;
    double begin;
    int is_over;
} calls[CALLS_MAX];

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void hex(const void *bytes, size_t length) {
    size_t at;
    putchar(' ');
    putchar('x');
    for (at = 0; at < length; ++at) {
        printf("%02x", ((const unsigned char *)bytes)[at]);
    }
}

/* What the latest function of the library came to. */
static void say(copyrpc_status status) {
    const char *words = copyrpc_last_error();
    if (status == COPYRPC_OK) {
        printf(" 0 0 0 x");
    } else {
        printf(" %d %d %d", (int)status, (int)copyrpc_last_origin(), copyrpc_last_not_executed());
        hex(words, strlen(words));
    }
}

static void say_end(size_t number, double begin, copyrpc_status status, const void *body, size_t length) {
    size_t detail_length;
    const void *detail = copyrpc_last_detail(&detail_length);
    printf("ended %zu %.0f", number, (now() - begin) * 1e6);
    say(status);
    hex(status == COPYRPC_OK ? body : detail, status == COPYRPC_OK ? length : detail_length);
    putchar('\n');
    fflush(stdout);
}

static void done(void *context, copyrpc_status status, const void *body, size_t length, void *user) {
    size_t number = (size_t)(uintptr_t)context;
    (void)user;
    calls[number].is_over = 1;
    say_end(number, calls[number].begin, status, body, length);
}

static void poll_pipeline(void) {
    size_t count = 1;
    while (count > 0 && copyrpc_pipeline_poll(pipeline, done, NULL, &count) == COPYRPC_OK) {
    }
}

/* `t` and a text, or `z` and a number of zeros. */
static void *body_of(const char *spec, size_t *length) {
    void *body;
    *length = spec[0] == 'z' ? strtoul(spec + 1, NULL, 10) : strlen(spec + 1);
    body = calloc(*length + 1, 1);
    if (body != NULL && spec[0] == 't') {
        memcpy(body, spec + 1, *length);
    }
    return body;
}

/* A call that lends its body, unless the region is too short for that. */
static copyrpc_status call_lending(uint16_t to, const void *body, size_t length, uint64_t timeout_us,
                                   const void **answer, size_t *answer_length) {
    int is_lent = length <= REGION_BYTES;
    copyrpc_slice slice = {region, 0, is_lent ? length : 0, 0};
    /* A child of fork(2) may not write; its call says so. */
    (void)copyrpc_region_write(region, 0, body, is_lent ? length : 0);
    return copyrpc_client_call_bulk(client, COPYRPC_HERE, copyrpc_service_number("probe"), to, body,
                                    is_lent ? 0 : length, &slice, 1, timeout_us, answer, answer_length);
}

static void start(int is_named, size_t number, const char *method, const char *spec, uint64_t timeout_us) {
    size_t length, answer_length = 0;
    void *body = body_of(spec, &length);
    const void *answer = NULL;
    uint16_t service = copyrpc_service_number("probe"), to = copyrpc_method_number(method);
    double begin = now();
    copyrpc_status status;
    if (is_pipeline) {
        calls[number].begin = begin;
        calls[number].is_over = 0;
        status = is_named
                     ? copyrpc_pipeline_submit_named(pipeline, COPYRPC_HERE, service, to, body, length, timeout_us,
                                                     (void *)(uintptr_t)number, &calls[number].name)
                     : copyrpc_pipeline_submit(pipeline, COPYRPC_HERE, service, to, body, length, timeout_us,
                                               (void *)(uintptr_t)number);
        if (status != COPYRPC_OK) {
            calls[number].is_over = 1;
            say_end(number, begin, status, NULL, 0);
        }
    } else {
        status = is_lending ? call_lending(to, body, length, timeout_us, &answer, &answer_length)
                            : copyrpc_client_call(client, COPYRPC_HERE, service, to, body, length, timeout_us,
                                                  &answer, &answer_length);
        say_end(number, begin, status, answer, answer_length);
    }
    free(body);
}

static copyrpc_status one_echo(void) {
    uint16_t service = copyrpc_service_number("probe"), echo = copyrpc_method_number("echo");
    return is_lending    ? call_lending(echo, "body", 4, 0, NULL, NULL)
           : is_pipeline ? copyrpc_pipeline_submit(pipeline, COPYRPC_HERE, service, echo, "body", 4, 0, NULL)
                         : copyrpc_client_call(client, COPYRPC_HERE, service, echo, "body", 4, 0, NULL, NULL);
}

/* A child of fork(2) is told at once that the handle is its parent's, and that nothing was sent. */
static void fork_and_call(void) {
    int status = -1;
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        double begin = now();
        alarm(20);
        status = one_echo();
        _exit(status == COPYRPC_UNAVAILABLE && copyrpc_last_not_executed() == 1 && now() - begin < 2 ? 0 : 1);
    }
    waitpid(child, &status, 0);
    printf("forked %d\n", status == 0);
}

static struct {
    int fine, refused, other;
} counts;

static void *call_often(void *argument) {
    int turn;
    (void)argument;
    for (turn = 0; turn < EACH; ++turn) {
        copyrpc_status status = one_echo();
        int *count = status == COPYRPC_OK                    ? &counts.fine
                     : status == COPYRPC_FAILED_PRECONDITION || status == COPYRPC_RESOURCE_EXHAUSTED
                         ? &counts.refused
                         : &counts.other;
        __atomic_add_fetch(count, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void counted(void *context, copyrpc_status status, const void *body, size_t length, void *user) {
    (void)context, (void)body, (void)length;
    *(int *)user += status == COPYRPC_OK;
}

/* Each call is made, and answered, or is refused. */
static void call_from_threads(void) {
    pthread_t threads[THREADS];
    int number, answered = 0;
    for (number = 0; number < THREADS; ++number) {
        pthread_create(&threads[number], NULL, call_often, NULL);
    }
    for (number = 0; number < THREADS; ++number) {
        pthread_join(threads[number], NULL);
    }
    while (is_pipeline && copyrpc_pipeline_in_flight(pipeline) > 0) {
        copyrpc_pipeline_poll(pipeline, counted, &answered, NULL);
        copyrpc_pipeline_rest(pipeline);
    }
    counts.other += is_pipeline && answered != counts.fine;
    printf("threads %d %d %d\n", counts.fine, counts.refused, counts.other);
}

static copyrpc_status connect_to(const char *socket, uint64_t timeout_us) {
    copyrpc_status status;
    copyrpc_client_free(client);
    copyrpc_pipeline_free(pipeline);
    client = NULL;
    pipeline = NULL;
    status = is_pipeline ? copyrpc_pipeline_connect(socket, timeout_us, &pipeline)
                         : copyrpc_client_connect(socket, timeout_us, &client);
    return status == COPYRPC_OK && is_lending ? copyrpc_client_region(client, REGION_BYTES, &region) : status;
}

static copyrpc_status reconnect(void) {
    copyrpc_status status = is_pipeline ? copyrpc_pipeline_reconnect(pipeline, done, NULL)
                                        : copyrpc_client_reconnect(client);
    return status == COPYRPC_OK && is_lending ? copyrpc_client_renew(client, region, NULL) : status;
}

static void obey(char *line) {
    char first[LINE_MAX_BYTES], second[LINE_MAX_BYTES], third[LINE_MAX_BYTES];
    unsigned long long number = 0, other = 0;
    if (sscanf(line, "connect %255s %llu", first, &number) == 2) {
        copyrpc_status status = connect_to(first, number);
        printf("connected");
        say(status);
        putchar('\n');
    } else if (sscanf(line, "start %llu %255s %255s %llu", &number, second, third, &other) == 4) {
        start(1, number, second, third, other);
    } else if (sscanf(line, "submit %llu %255s %255s %llu", &number, second, third, &other) == 4) {
        start(0, number, second, third, other);
    } else if (sscanf(line, "cancel %llu", &number) == 1) {
        copyrpc_status status = copyrpc_pipeline_cancel(pipeline, calls[number].name, NULL);
        calls[number].is_over = 1;
        printf("cancelled %d\n", (int)status);
    } else if (sscanf(line, "trace %llu", &number) == 1) {
        printf("traced %d\n", (int)(is_pipeline ? copyrpc_pipeline_set_trace(pipeline, number)
                                                : copyrpc_client_set_trace(client, number)));
    } else if (strcmp(line, "reconnect\n") == 0) {
        copyrpc_status status = reconnect();
        printf("reconnected");
        say(status);
        putchar('\n');
    } else if (strcmp(line, "fork\n") == 0) {
        fork_and_call();
    } else if (strcmp(line, "threads\n") == 0) {
        call_from_threads();
    } else {
        fprintf(stderr, "nobody knows the line: %s", line);
        exit(1);
    }
    fflush(stdout);
}

/* Reads a line without waiting for more of it than is there: standard input is polled, so it has no buffer. */
static int read_line(char *line, size_t room) {
    size_t length = 0;
    while (length + 1 < room && read(STDIN_FILENO, line + length, 1) == 1) {
        if (line[length++] == '\n') {
            line[length] = 0;
            return 1;
        }
    }
    return 0;
}

static int run_client(void) {
    char line[4 * LINE_MAX_BYTES];
    for (;;) {
        struct pollfd fds[2] = {{STDIN_FILENO, POLLIN, 0}, {-1, POLLIN, 0}};
        int timeout_ms = -1;
        if (pipeline != NULL) {
            poll_pipeline();
            if (copyrpc_pipeline_in_flight(pipeline) > 0) {
                int is_armed = copyrpc_pipeline_arm(pipeline);
                uint64_t left_us = copyrpc_pipeline_time_left_us(pipeline);
                fds[1].fd = copyrpc_pipeline_fd(pipeline);
                timeout_ms = !is_armed ? 0 : left_us > 60000000 ? 60000 : (int)((left_us + 999) / 1000);
            }
        }
        poll(fds, 2, timeout_ms);
        if (fds[0].revents != 0) {
            if (!read_line(line, sizeof line)) {
                break;
            }
            obey(line);
        }
    }
    copyrpc_region_free(region);
    copyrpc_client_free(client);
    copyrpc_pipeline_free(pipeline);
    return 0;
}

enum { ECHO = 1, SLEEP = 2, LENGTH = 3, AWAIT = 5 };

static int is_request_cancelled(const void *provider, const void *request) {
    (void)provider;
    return copyrpc_request_is_cancelled(request);
}

static int is_work_cancelled(const void *provider, const void *work) {
    return copyrpc_bulk_provider_is_cancelled((copyrpc_bulk_provider *)provider, work);
}

typedef int is_cancelled(const void *provider, const void *work);

/* A file is there while the handler waits for its cancellation alone. */
static void await_cancellation(is_cancelled *asks, const void *provider, const void *work, const char *body,
                               size_t length) {
    char name[LINE_MAX_BYTES];
    FILE *file;
    snprintf(name, sizeof name, "%.*s", (int)length, body);
    file = fopen(name, "w");
    if (file != NULL) {
        fclose(file);
    }
    while (!asks(provider, work)) {
        usleep(1000);
    }
    remove(name);
}

static void *answer(void *argument) {
    copyrpc_request *request = argument;
    size_t length;
    const void *body = copyrpc_request_body(request, &length);
    uint32_t wanted;
    void *bytes;
    switch (copyrpc_request_method(request)) {
    case ECHO:
        copyrpc_request_reply(request, COPYRPC_OK, body, length);
        break;
    case SLEEP:
        while (!copyrpc_request_is_cancelled(request)) {
            usleep(1000);
        }
        copyrpc_request_reply(request, COPYRPC_CANCELLED, "nobody waits", 12);
        break;
    case LENGTH:
        memcpy(&wanted, body, sizeof wanted);
        bytes = calloc(wanted, 1);
        copyrpc_request_reply(request, COPYRPC_OK, bytes, wanted);
        free(bytes);
        break;
    case AWAIT:
        await_cancellation(is_request_cancelled, NULL, request, body, length);
        copyrpc_request_reply(request, COPYRPC_CANCELLED, NULL, 0);
        break;
    default:
        copyrpc_request_reply(request, COPYRPC_UNIMPLEMENTED, NULL, 0);
    }
    return NULL;
}

static void serve_here(copyrpc_request *request, void *user) {
    (void)user;
    answer(request);
}

/* Threads that answer. */
static int answering;

static void *answer_on_thread(void *request) {
    answer(request);
    __atomic_sub_fetch(&answering, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void serve_on_thread(copyrpc_request *request, void *user) {
    pthread_t thread;
    (void)user;
    __atomic_add_fetch(&answering, 1, __ATOMIC_RELAXED);
    if (pthread_create(&thread, NULL, answer_on_thread, request) != 0) {
        __atomic_sub_fetch(&answering, 1, __ATOMIC_RELEASE);
        copyrpc_request_reply(request, COPYRPC_RESOURCE_EXHAUSTED, NULL, 0);
        return;
    }
    pthread_detach(thread);
}

/* The provider ends with standard input. */
static void *stop_at_end(void *provider) {
    char line[LINE_MAX_BYTES];
    while (read_line(line, sizeof line)) {
    }
    copyrpc_provider_stop(provider);
    return NULL;
}

static int run_provider(int on_threads, const char *socket, uint16_t service) {
    copyrpc_provider *provider = NULL;
    pthread_t stopper;
    copyrpc_status status = copyrpc_provider_offer(socket, service, NULL, 0, 0, &provider);
    if (status == COPYRPC_OK && pthread_create(&stopper, NULL, stop_at_end, provider) == 0) {
        puts("serving");
        fflush(stdout);
        status = copyrpc_provider_serve(provider, on_threads ? serve_on_thread : serve_here, NULL);
        pthread_join(stopper, NULL);
    }
    if (status != COPYRPC_OK) {
        fprintf(stderr, "%s\n", copyrpc_last_error());
    }
    /* The scenario waits for its end, and not for ever. */
    while (__atomic_load_n(&answering, __ATOMIC_ACQUIRE) > 0) {
        usleep(1000);
    }
    copyrpc_provider_free(provider);
    return status != COPYRPC_OK;
}

static int is_over;

static void *notice_end(void *argument) {
    char line[LINE_MAX_BYTES];
    (void)argument;
    while (read_line(line, sizeof line)) {
    }
    __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
    return NULL;
}

static void answer_work(copyrpc_bulk_provider *provider, copyrpc_work *work) {
    size_t length;
    const void *body = copyrpc_work_body(work, &length);
    uint32_t wanted;
    void *bytes;
    switch (copyrpc_work_method(work)) {
    case ECHO:
        copyrpc_bulk_provider_answer(provider, work, COPYRPC_OK, body, length);
        break;
    case SLEEP:
        while (!copyrpc_bulk_provider_is_cancelled(provider, work)) {
            usleep(1000);
        }
        copyrpc_bulk_provider_answer(provider, work, COPYRPC_CANCELLED, "nobody waits", 12);
        break;
    case LENGTH:
        memcpy(&wanted, body, sizeof wanted);
        bytes = calloc(wanted, 1);
        copyrpc_bulk_provider_answer(provider, work, COPYRPC_OK, bytes, wanted);
        free(bytes);
        break;
    case AWAIT:
        await_cancellation(is_work_cancelled, provider, work, body, length);
        copyrpc_bulk_provider_answer(provider, work, COPYRPC_CANCELLED, NULL, 0);
        break;
    default:
        copyrpc_bulk_provider_answer(provider, work, COPYRPC_UNIMPLEMENTED, NULL, 0);
    }
}

static int run_lending_provider(const char *socket, uint16_t service) {
    copyrpc_bulk_provider *provider = NULL;
    pthread_t notices;
    copyrpc_status status = copyrpc_bulk_provider_offer(socket, service, 0, &provider);
    if (status == COPYRPC_OK && pthread_create(&notices, NULL, notice_end, NULL) == 0) {
        puts("serving");
        fflush(stdout);
        while (status == COPYRPC_OK && !__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
            copyrpc_work *work = NULL;
            status = copyrpc_bulk_provider_next(provider, 10000, &work);
            if (work != NULL) {
                answer_work(provider, work);
            }
        }
        pthread_join(notices, NULL);
    }
    if (status != COPYRPC_OK) {
        fprintf(stderr, "%s\n", copyrpc_last_error());
    }
    copyrpc_bulk_provider_free(provider);
    return status != COPYRPC_OK;
}

int main(int count, char **arguments) {
    const char *does = count > 1 ? arguments[1] : "";
    if (count == 4 && strcmp(does, "lending") == 0) {
        return run_lending_provider(arguments[2], (uint16_t)atoi(arguments[3]));
    }
    if (count == 4) {
        return run_provider(strcmp(does, "threads") == 0, arguments[2], (uint16_t)atoi(arguments[3]));
    }
    is_pipeline = strcmp(does, "pipeline") == 0;
    is_lending = strcmp(does, "lending") == 0;
    return run_client();
}
