/* Opens each engine that it is told of, runs its functions on zeros of small sizes, closes it, and says what came of it. */
#include "ourcc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sizes that a call decides are the least that their symbol may be, and at least this. */
static int64_t size_of(const ourcc_engine *engine, const char *function, const char *text, int64_t least) {
    size_t count;
    const ourcc_symbol *symbols = ourcc_symbols(engine, function, &count);
    for (size_t n = 0; n < count; ++n)
        if (strcmp(symbols[n].name, text) == 0) return symbols[n].low > least ? symbols[n].low : least;
    return least;
}

static ourcc_status run(ourcc_engine *engine, const char *function, int64_t least, ourcc_error *error) {
    size_t input_count, output_count;
    const ourcc_port *ports = ourcc_inputs(engine, function, &input_count);
    ourcc_outputs(engine, function, &output_count);
    ourcc_tensor *inputs = calloc(input_count + 1, sizeof *inputs), *outputs = calloc(output_count + 1, sizeof *outputs);
    ourcc_session *session;
    ourcc_status status = ourcc_session_open(engine, &session, error);
    for (size_t n = 0; n < input_count; ++n) {
        int64_t *shape = calloc(ports[n].rank + 1, sizeof *shape);
        for (size_t axis = 0; axis < ports[n].rank; ++axis)
            shape[axis] = ports[n].shape[axis] >= 0 ? ports[n].shape[axis] : size_of(engine, function, ports[n].sizes[axis], least);
        size_t bytes = ourcc_tensor_bytes(ports[n].dtype, ports[n].rank, shape);
        inputs[n] = (ourcc_tensor){calloc(1, bytes < 1 << 24 ? bytes + 1 : 1), bytes, ports[n].dtype, ports[n].rank, shape};
    }
    for (int times = 0; status == OURCC_OK && times < 2; ++times)
        status = ourcc_run(session, function, inputs, input_count, outputs, output_count, error);
    if (status == OURCC_OK) /* Every byte of the outputs is there. */
        for (size_t n = 0; n < output_count; ++n) {
            char *copy = malloc(outputs[n].bytes + 1);
            memcpy(copy, outputs[n].data, outputs[n].bytes);
            free(copy);
        }
    ourcc_session_close(session);
    for (size_t n = 0; n < input_count; ++n) {
        free(inputs[n].data);
        free((void *)inputs[n].shape);
    }
    free(inputs);
    free(outputs);
    return status;
}

static ourcc_status look(const char *path, ourcc_error *error) {
    ourcc_engine *engine;
    ourcc_options options = {.threads = 2};
    ourcc_status status = ourcc_open(path, &options, &engine, error);
    for (size_t n = 0; status == OURCC_OK && n < ourcc_function_count(engine); ++n)
        for (int64_t least = 1; status == OURCC_OK && least < 3; ++least)
            status = run(engine, ourcc_function_name(engine, n), least, error);
    ourcc_close(engine);
    return status;
}

int main(void) {
    char path[4096];
    while (fgets(path, sizeof path, stdin)) {
        ourcc_error error;
        path[strcspn(path, "\n")] = 0;
        ourcc_status status = look(path, &error);
        printf("%s\t%s\n", ourcc_status_name(status), error.message);
        fflush(stdout);
    }
    return 0;
}
