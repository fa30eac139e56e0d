/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Services of Rust whose values travel as JSON, called from C: typed SOCKET. A body is the array of the arguments, or null;
 * an answer is the value.
 */
#include "copyrpc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #condition,                \
                    copyrpc_last_error());                                                        \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

static const uint64_t PATIENCE_US = 60 * 1000 * 1000;

static copyrpc_client *client;

/* The answer to a call, as a text. */
static const char *call(const char *method, const char *arguments, copyrpc_status expected) {
    static char text[1 << 16];
    const void *answer = "";
    size_t length = 0;
    copyrpc_status status =
        copyrpc_client_call(client, COPYRPC_HERE, copyrpc_service_number("files"), copyrpc_method_number(method),
                            arguments, strlen(arguments), 0, &answer, &length);
    CHECK(status == expected);
    if (status != COPYRPC_OK) {
        answer = copyrpc_last_detail(&length);
    }
    CHECK(length < sizeof text);
    memcpy(text, answer, length);
    text[length] = 0;
    return text;
}

/* All pages of a result: each says where the next one begins. */
static int count_names(void) {
    char arguments[64];
    const char *page, *at, *next;
    int count = 0;
    strcpy(arguments, "[\"file\",null]");
    for (;;) {
        page = call("list", arguments, COPYRPC_OK);
        for (at = page; (at = strstr(at, "\"file ")) != NULL; ++at) {
            ++count;
        }
        next = strstr(page, "\"next\":");
        CHECK(next != NULL);
        if (strncmp(next + 7, "null", 4) == 0) {
            return count;
        }
        snprintf(arguments, sizeof arguments, "[\"file\",%d]", atoi(next + 7));
    }
}

/* Before the arguments of a call that lends memory are eight bytes: 0, the program does not know the types. */
static void lends(void) {
    const char arguments[] = "\0\0\0\0\0\0\0\0[\"page\"]";
    copyrpc_region *region = NULL;
    copyrpc_slice slice;
    const void *answer;
    size_t length;
    char bytes[9];
    CHECK(copyrpc_client_region(client, 4096, &region) == COPYRPC_OK);
    CHECK(copyrpc_region_write(region, 0, "lent by C", 9) == COPYRPC_OK);
    slice.region = region;
    slice.offset = 0;
    slice.length = 9;
    slice.writable = 1;
    CHECK(copyrpc_client_call_bulk(client, COPYRPC_HERE, copyrpc_service_number("kept"),
                                   copyrpc_method_number("reverse"), arguments, sizeof arguments - 1, &slice, 1, 0,
                                   &answer, &length) == COPYRPC_OK);
    CHECK(length == 10 && memcmp(answer, "{\"page\":9}", 10) == 0);
    memset(bytes, 0, sizeof bytes);
    CHECK(copyrpc_region_read(region, 0, bytes, 9) == COPYRPC_OK && memcmp(bytes, "C yb tnel", 9) == 0);
    CHECK(copyrpc_client_forget(client, region) == COPYRPC_OK);
}

int main(int count, char **arguments) {
    const char *said;
    CHECK(count == 2 && copyrpc_client_connect(arguments[1], PATIENCE_US, &client) == COPYRPC_OK);
    CHECK(strcmp(call("length", "[\"/etc/hostname\"]", COPYRPC_OK), "13") == 0);
    CHECK(strcmp(call("count", "null", COPYRPC_OK), "250") == 0);
    CHECK(count_names() == 250);
    said = call("length", "[7]", COPYRPC_INVALID_ARGUMENT);
    CHECK(strstr(said, "arguments") != NULL && copyrpc_last_origin() == COPYRPC_ORIGIN_SERVICE);
    call("absent", "null", COPYRPC_UNIMPLEMENTED);
    CHECK(copyrpc_last_origin() == COPYRPC_ORIGIN_NO_METHOD && copyrpc_last_not_executed() == 1);
    lends();
    copyrpc_client_free(client);
    return 0;
}
