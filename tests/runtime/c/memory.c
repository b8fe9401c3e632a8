/* Opens an engine, runs its entry on zeros of the sizes that are given, and prints the kilobytes that it had before and has at most. */
#include "ourcc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long kilobytes(const char *what) {
    char line[256];
    long found = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, what, strlen(what)) == 0) found = strtol(line + strlen(what) + 1, NULL, 10);
    if (file) fclose(file);
    return found;
}

int main(int count, char **words) {
    ourcc_error error;
    ourcc_engine *engine = NULL;
    ourcc_session *session = NULL;
    const long before = kilobytes("VmRSS");
    ourcc_options options = {.threads = 1};
    ourcc_status status = ourcc_open(words[1], &options, &engine, &error);
    if (status == OURCC_OK) status = ourcc_session_open(engine, &session, &error);
    size_t ports = 0, results = 0;
    const ourcc_port *inputs = status == OURCC_OK ? ourcc_inputs(engine, NULL, &ports) : NULL;
    if (status == OURCC_OK) ourcc_outputs(engine, NULL, &results);
    ourcc_tensor given[8] = {{0}}, got[8] = {{0}};
    int64_t shapes[8][8];
    for (size_t n = 0; n < ports; ++n) {
        for (size_t axis = 0; axis < inputs[n].rank; ++axis)
            shapes[n][axis] = inputs[n].shape[axis] >= 0 ? inputs[n].shape[axis] : strtol(words[2 + (axis > 0 && count > 3)], NULL, 10);
        const size_t bytes = ourcc_tensor_bytes(inputs[n].dtype, inputs[n].rank, shapes[n]);
        given[n] = (ourcc_tensor){calloc(1, bytes + 1), bytes, inputs[n].dtype, inputs[n].rank, shapes[n]};
    }
    for (int times = 0; status == OURCC_OK && times < 3; ++times)
        status = ourcc_run(session, NULL, given, ports, got, results, &error);
    if (status == OURCC_OK)
        printf("%ld %ld\n", before, kilobytes("VmHWM"));
    else
        fprintf(stderr, "%s: %s\n", ourcc_status_name(status), error.message);
    for (size_t n = 0; n < ports; ++n) free(given[n].data);
    ourcc_session_close(session);
    ourcc_close(engine);
    return status == OURCC_OK ? 0 : 1;
}
