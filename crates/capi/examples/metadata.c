/* A metadata service on every node of a job, and programs that ask it.
 *
 *   cc metadata.c $(pkg-config --cflags --libs copyrpc) -pthread -o metadata
 *   ./metadata serve    on each node: ends with Ctrl-C
 *   ./metadata ask      asks every rank, one call at a time, and then many at once
 *   ./metadata watch    asks its own node until the daemon was gone once, and is back
 */
#include <copyrpc.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FAST = 60, PATIENCE_US = 30 * 1000 * 1000 };
static uint16_t metadata, method_stat, method_wait;

static void need(copyrpc_status status, const char *what) {
    if (status != COPYRPC_OK) {
        fprintf(stderr, "%s: %s\n", what, copyrpc_last_error());
        exit(1);
    }
}

/* A slow request has a thread of its own, and delays no other. */
static void *answer_slowly(void *request) {
    sleep(1);
    copyrpc_request_reply(request, COPYRPC_OK, "waited", 6);
    return NULL;
}

static void answer(copyrpc_request *request, void *user) {
    size_t length;
    const char *path = copyrpc_request_body(request, &length);
    char copy[4096] = {0}, text[32];
    struct stat told;
    pthread_t thread;
    (void)user;
    if (copyrpc_request_method(request) == method_wait) {
        pthread_create(&thread, NULL, answer_slowly, request);
        pthread_detach(thread);
    } else if (copyrpc_request_method(request) != method_stat || length >= sizeof copy) {
        copyrpc_request_reply(request, COPYRPC_UNIMPLEMENTED, NULL, 0);
    } else if (stat(memcpy(copy, path, length), &told) != 0) {
        copyrpc_request_reply(request, COPYRPC_NOT_FOUND, path, length);
    } else {
        int digits = snprintf(text, sizeof text, "%lld", (long long)told.st_size);
        copyrpc_request_reply(request, COPYRPC_OK, text, (size_t)digits);
    }
}

static void *run(void *provider) {
    need(copyrpc_provider_serve(provider, answer, NULL), "serve");
    return NULL;
}

static void serve(void) {
    copyrpc_provider *provider;
    pthread_t thread;
    sigset_t signals;
    int number;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    /* The service is offered again to each daemon that follows the one of this node. */
    need(copyrpc_provider_offer(NULL, metadata, "metadata", COPYRPC_OFFER_SHARED, 0, &provider), "offer");
    pthread_create(&thread, NULL, run, provider);
    puts("serving");
    sigwait(&signals, &number);
    copyrpc_provider_stop(provider);
    pthread_join(thread, NULL);
    copyrpc_provider_free(provider);
    puts("ended");
}

static void ended(void *what, copyrpc_status status, const void *body, size_t length, void *user) {
    int *fast = user;
    need(status, what);
    if (strcmp(what, "slow") == 0) {
        printf("%d fast calls ended before the slow one: %.*s\n", *fast, (int)length, (const char *)body);
    }
    ++*fast;
}

static void ask(void) {
    copyrpc_client *client;
    copyrpc_pipeline *pipeline;
    const void *body;
    size_t length, count;
    uint32_t own, size, rank;
    int fast = 0, call;
    need(copyrpc_client_connect(NULL, PATIENCE_US, &client), "connect");
    need(copyrpc_client_who(client, &own, &size), "who");
    for (rank = 0; rank < size; ++rank) {
        need(copyrpc_client_call(client, rank, metadata, method_stat, "/", 1, 0, &body, &length), "stat");
        printf("rank %u of %u, seen from %u: %.*s bytes\n", rank, size, own, (int)length, (const char *)body);
    }
    if (copyrpc_client_call(client, own, metadata, method_stat, "/nowhere", 8, 0, NULL, NULL) == COPYRPC_NOT_FOUND) {
        printf("not found: %s\n", copyrpc_last_error());
    }
    if (copyrpc_client_call(client, own, metadata, method_wait, "", 0, 100 * 1000, NULL, NULL) == COPYRPC_DEADLINE_EXCEEDED) {
        puts("a call of 0.1 s: deadline exceeded");
    }
    copyrpc_client_free(client);
    need(copyrpc_pipeline_connect(NULL, PATIENCE_US, &pipeline), "connect");
    need(copyrpc_pipeline_submit(pipeline, 0, metadata, method_wait, "", 0, 0, "slow"), "submit");
    for (call = 0; call < FAST; ++call) {
        need(copyrpc_pipeline_submit(pipeline, (uint32_t)call % size, metadata, method_stat, "/", 1, 0, "fast"), "submit");
    }
    while (copyrpc_pipeline_in_flight(pipeline) > 0) {
        need(copyrpc_pipeline_poll(pipeline, ended, &fast, &count), "poll");
        if (count == 0) {
            need(copyrpc_pipeline_rest(pipeline), "rest");
        }
    }
    copyrpc_pipeline_free(pipeline);
}

static void watch(void) {
    copyrpc_client *client;
    int was_gone = 0;
    need(copyrpc_client_connect(NULL, PATIENCE_US, &client), "connect");
    for (;; usleep(100 * 1000)) {
        if (copyrpc_client_call(client, COPYRPC_HERE, metadata, method_stat, "/", 1, 0, NULL, NULL) == COPYRPC_OK) {
            puts(was_gone ? "answered again" : "answered");
            if (was_gone) {
                copyrpc_client_free(client);
                return;
            }
        } else if (copyrpc_last_origin() == COPYRPC_ORIGIN_DAEMON_GONE) {
            was_gone = 1;
            while (copyrpc_client_reconnect(client) != COPYRPC_OK) {
                usleep(100 * 1000);
            }
        }
    }
}

int main(int count, char **arguments) {
    const char *does = count == 2 ? arguments[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    metadata = copyrpc_service_number("metadata");
    method_stat = copyrpc_method_number("stat");
    method_wait = copyrpc_method_number("wait");
    strcmp(does, "serve") == 0 ? serve() : strcmp(does, "ask") == 0 ? ask() : watch();
    return 0;
}
