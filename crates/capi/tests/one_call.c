/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The shortest program: connects to the daemon whose socket is the first argument, calls it, and frees what it has.
 */
#include "copyrpc.h"

#include <stdio.h>

int main(int count, char **arguments) {
    copyrpc_client *client = NULL;
    const void *answer;
    size_t length;
    const uint64_t patience_us = 60 * 1000 * 1000;
    if (count != 2 || copyrpc_client_connect(arguments[1], patience_us, &client) != COPYRPC_OK) {
        fprintf(stderr, "connect: %s\n", copyrpc_last_error());
        return 1;
    }
    /* The daemon itself is service 0, and answers method 0 with the body. */
    if (copyrpc_client_call(client, COPYRPC_HERE, 0, 0, "hello", 5, 0, &answer, &length) != COPYRPC_OK || length != 5) {
        fprintf(stderr, "call: %s\n", copyrpc_last_error());
        return 1;
    }
    copyrpc_client_free(client);
    return 0;
}
