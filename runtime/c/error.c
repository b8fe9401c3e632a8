/* Errors: the one way out of whatever fails, and the words for statuses. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>

/* In a function of its own: what it changes after setjmp is no variable of the function that called setjmp. */
static ourcc_status tried(struct task *task, void (*work)(struct task *task, void *call), void *call) {
    if (setjmp(task->end) == 0) work(task, call);
    if (task->taken) atomic_store(task->taken, false);
    return task->error->status;
}

ourcc_status ourcc_try(void (*work)(struct task *task, void *call), void *call, ourcc_error *error) {
    ourcc_error own;
    struct task task = {.error = error ? error : &own};
    task.error->status = OURCC_OK;
    task.error->message[0] = 0;
    return tried(&task, work, call);
}

void ourcc_fail(struct task *task, ourcc_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    task->error->status = status;
    vsnprintf(task->error->message, sizeof task->error->message, format, arguments);
    va_end(arguments);
    longjmp(task->end, 1);
}

void ourcc_add(struct line *line, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(line->text + line->length, sizeof line->text - line->length, format, arguments);
    va_end(arguments);
    if (written > 0) line->length += (size_t)written;
    if (line->length >= sizeof line->text) line->length = sizeof line->text - 1;
}

const char *ourcc_status_name(ourcc_status status) {
    switch (status) {
    case OURCC_OK: return "OURCC_OK";
    case OURCC_USAGE: return "OURCC_USAGE";
    case OURCC_SYSTEM: return "OURCC_SYSTEM";
    case OURCC_DAMAGED: return "OURCC_DAMAGED";
    case OURCC_UNSUPPORTED: return "OURCC_UNSUPPORTED";
    case OURCC_INPUT: return "OURCC_INPUT";
    case OURCC_MEMORY: return "OURCC_MEMORY";
    case OURCC_FAILED: return "OURCC_FAILED";
    case OURCC_BUSY: return "OURCC_BUSY";
    }
    return "no status of ourcc";
}
