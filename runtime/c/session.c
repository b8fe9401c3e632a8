/* Sessions: the memory of calls and of states, and a call from inputs to outputs. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* What the calls of one function need, kept from one to the next. */
struct context {
    bool is_made;
    struct binding binding;
    void **pointers;       /* by buffer, as native code takes them */
    struct block *blocks;  /* of buffers that the session has memory for */
    struct block *results; /* of outputs that are copies */
    struct block *given;   /* those before them, which a call reads as inputs: of buffers, then of results */
};

struct ourcc_session {
    atomic_bool is_busy;
    ourcc_engine *engine;
    struct memory memory;
    struct context *contexts; /* by function */
    struct block *states;
    struct block arena;
    bool has_failed;
    char failure[300];
};

/* --- memory --- */

static void begin_states(struct task *task, ourcc_session *session) {
    const ourcc_engine *engine = session->engine;
    for (size_t n = 0; n < engine->state_count; ++n) {
        size_t size = ourcc_static_bytes(&engine->states[n].type);
        bool is_new = !session->states[n].data;
        ourcc_reserve(task, &session->states[n], size, engine->states[n].name);
        if (engine->initials[n])
            memcpy(session->states[n].data, engine->initials[n]->data, size);
        else if (!is_new)
            memset(session->states[n].data, 0, size);
    }
    session->has_failed = false;
}

static struct context *context_of(struct task *task, ourcc_session *session, const struct plan *plan) {
    struct context *context = &session->contexts[plan - session->engine->plans];
    if (context->is_made) return context;
    ourcc_make_binding(task, &session->memory, plan, &context->binding);
    context->blocks = ourcc_take(task, &session->memory, plan->buffer_count + 1, sizeof *context->blocks);
    context->results = ourcc_take(task, &session->memory, plan->output_count + 1, sizeof *context->results);
    context->given = ourcc_take(task, &session->memory, plan->buffer_count + plan->output_count + 1, sizeof *context->given);
    context->pointers = ourcc_take(task, &session->memory, plan->buffer_count + 1, sizeof *context->pointers);
    for (size_t n = 0; n < plan->buffer_count; ++n) {
        size_t state;
        if (plan->buffers[n].place == PLACE_CONSTANT) context->pointers[n] = (void *)(uintptr_t)plan->constants[n]->data;
        if (plan->buffers[n].place == PLACE_STATE && ourcc_find(&session->engine->state_names, plan->buffers[n].key, &state))
            context->pointers[n] = session->states[state].data;
    }
    context->is_made = true;
    return context;
}

static void free_session(ourcc_session *session) {
    if (!session) return;
    for (size_t n = 0; session->contexts && n < session->engine->plan_count; ++n) {
        struct context *context = &session->contexts[n];
        const struct plan *plan = &session->engine->plans[n];
        if (!context->is_made) continue;
        for (size_t each = 0; each < plan->buffer_count; ++each) ourcc_free_block(&context->blocks[each]);
        for (size_t each = 0; each < plan->output_count; ++each) ourcc_free_block(&context->results[each]);
        for (size_t each = 0; each < plan->buffer_count + plan->output_count; ++each) ourcc_free_block(&context->given[each]);
    }
    for (size_t n = 0; session->states && n < session->engine->state_count; ++n) ourcc_free_block(&session->states[n]);
    ourcc_free_block(&session->arena);
    ourcc_free_memory(&session->memory);
    ourcc_close(session->engine);
    free(session);
}

/* Where a buffer lies during a call. */
static char *address(const struct plan *plan, const ourcc_session *session, const struct context *context, struct task *task, size_t number) {
    const struct buffer *buffer = &plan->buffers[number];
    if (buffer->place == PLACE_ALIAS) {
        int64_t offset = ourcc_evaluate(task, buffer->offset, context->binding.values);
        uint64_t end = (uint64_t)offset + context->binding.bytes[number];
        if (offset < 0 || end > context->binding.bytes[buffer->root])
            ourcc_fail(task, OURCC_DAMAGED, "buffer %s of the plan lies outside of its root", buffer->name);
        return address(plan, session, context, task, buffer->root) + offset;
    }
    if (buffer->place == PLACE_ARENA) return session->arena.data + context->binding.slots[buffer->root];
    return context->pointers[number];
}

/* --- what callers give --- */

static void check_input(struct task *task, const ourcc_port *port, const ourcc_tensor *tensor) {
    struct line expected = {.length = 0}, shape = {.length = 0};
    unsigned bits = ourcc_bits(port->dtype);
    if (tensor->dtype != port->dtype)
        ourcc_fail(task, OURCC_INPUT, "input '%s' has dtype %s, expected %s", port->name, ourcc_dtype_name(tensor->dtype),
                   ourcc_dtype_name(port->dtype));
    for (size_t n = 0; n < port->rank; ++n) ourcc_add(&expected, "%s%s", n ? ", " : "", port->sizes[n]);
    if (tensor->rank && !tensor->shape) ourcc_fail(task, OURCC_INPUT, "input '%s' has rank %zu and no shape", port->name, tensor->rank);
    ourcc_add_shape(&shape, tensor->rank, tensor->shape);
    if (tensor->rank != port->rank)
        ourcc_fail(task, OURCC_INPUT, "input '%s' has rank %zu [%s], expected %zu: %s[%s]", port->name, tensor->rank, shape.text, port->rank,
                   ourcc_dtype_name(port->dtype), expected.text);
    size_t bytes = ourcc_tensor_bytes(tensor->dtype, tensor->rank, tensor->shape);
    if (bytes == SIZE_MAX) ourcc_fail(task, OURCC_INPUT, "input '%s' has the shape [%s], which no memory holds", port->name, shape.text);
    if (tensor->bytes < bytes || (!tensor->data && bytes))
        ourcc_fail(task, OURCC_INPUT, "input '%s' has %zu bytes of memory, expected %zu for [%s]", port->name,
                   tensor->data ? tensor->bytes : 0, bytes, shape.text);
    if ((uintptr_t)tensor->data % (bits < 8 ? 1 : bits / 8 > 8 ? 8 : bits / 8))
        ourcc_fail(task, OURCC_INPUT, "input '%s' lies at an address that is not aligned to its elements", port->name);
}

static bool overlap(const void *one, size_t size, const void *other, size_t length) {
    return size && length && (uintptr_t)one < (uintptr_t)other + length && (uintptr_t)other < (uintptr_t)one + size;
}

/* The block of the session's memory with this number: of buffers, then of results. */
static struct block *block_at(const struct plan *plan, const struct context *context, size_t number) {
    return number < plan->buffer_count ? &context->blocks[number] : &context->results[number - plan->buffer_count];
}

/* The first input that lies in a block, else their number. */
static size_t input_in(const struct plan *plan, const struct binding *binding, const ourcc_tensor *inputs, const struct block *block) {
    size_t n = 0;
    while (n < plan->input_count && !overlap(block->data, block->size, inputs[n].data, binding->bytes[plan->inputs[n]])) ++n;
    return n;
}

/* Inputs may be what the last call gave: then this one gives its outputs in other memory, which is taken in turns. */
static void keep_inputs(struct task *task, const struct plan *plan, const struct context *context, const ourcc_tensor *inputs) {
    for (size_t n = 0; n < plan->buffer_count + plan->output_count; ++n) {
        struct block *block = block_at(plan, context, n), last = *block;
        if (!block->data || input_in(plan, &context->binding, inputs, block) == plan->input_count) continue;
        size_t older = input_in(plan, &context->binding, inputs, &context->given[n]);
        if (older < plan->input_count)
            ourcc_fail(task, OURCC_INPUT, "input '%s' lies in memory of outputs that the session gave before its last run: copy it",
                       plan->input_ports[older].name);
        *block = context->given[n];
        context->given[n] = last;
    }
}

static void check_output(struct task *task, const struct plan *plan, const struct context *context, const ourcc_tensor *inputs,
                         const ourcc_tensor *outputs, size_t number) {
    const struct binding *binding = &context->binding;
    const ourcc_port *port = &plan->output_ports[number];
    const ourcc_tensor *output = &outputs[number];
    size_t bytes = binding->bytes[plan->outputs[number]];
    unsigned bits = ourcc_bits(port->dtype);
    struct line shape = {.length = 0};
    if (!output->data) return;
    ourcc_add_shape(&shape, port->rank, binding->shapes[number]);
    if (output->bytes < bytes)
        ourcc_fail(task, OURCC_INPUT, "memory for output '%s' has %zu bytes, expected %zu for %s[%s]", port->name, output->bytes, bytes,
                   ourcc_dtype_name(port->dtype), shape.text);
    if ((uintptr_t)output->data % (bits < 8 ? 1 : bits / 8 > 8 ? 8 : bits / 8))
        ourcc_fail(task, OURCC_INPUT, "memory for output '%s' is not aligned to its elements", port->name);
    for (size_t n = 0; n < plan->input_count; ++n)
        if (overlap(output->data, bytes, inputs[n].data, binding->bytes[plan->inputs[n]]))
            ourcc_fail(task, OURCC_INPUT, "memory for output '%s' overlaps input '%s'", port->name, plan->input_ports[n].name);
    for (size_t n = 0; n < number; ++n)
        if (outputs[n].data && overlap(output->data, bytes, outputs[n].data, binding->bytes[plan->outputs[n]]))
            ourcc_fail(task, OURCC_INPUT, "memory for output '%s' overlaps that of '%s'", port->name, plan->output_ports[n].name);
    for (size_t n = 0; n < plan->buffer_count + plan->output_count; ++n) {
        const struct block *block = block_at(plan, context, n), *given = &context->given[n];
        if (overlap(output->data, bytes, block->data, block->size) || overlap(output->data, bytes, given->data, given->size))
            ourcc_fail(task, OURCC_INPUT, "memory for output '%s' is the session's own, for another output or for other sizes", port->name);
    }
}

/* --- a call --- */

/* The output that a buffer is, where it is the caller's own memory; else the number of outputs. */
static size_t output_of(const struct plan *plan, size_t buffer) {
    size_t n = 0;
    while (n < plan->output_count && (plan->outputs[n] != buffer || plan->copied[n])) ++n;
    return n;
}

static void place_buffers(struct task *task, const struct plan *plan, ourcc_session *session, struct context *context,
                          const ourcc_tensor *inputs, const ourcc_tensor *outputs) {
    static char nothing[OURCC_ALIGNMENT];
    for (size_t n = 0; n < plan->input_count; ++n) context->pointers[plan->inputs[n]] = inputs[n].data ? inputs[n].data : nothing;
    for (size_t n = 0; n < plan->buffer_count; ++n) {
        enum place place = plan->buffers[n].place;
        if (place != PLACE_OUTPUT && place != PLACE_DYNAMIC) continue;
        size_t output = output_of(plan, n);
        if (output < plan->output_count && outputs[output].data) {
            context->pointers[n] = outputs[output].data;
            continue;
        }
        ourcc_reserve(task, &context->blocks[n], context->binding.bytes[n], plan->buffers[n].what);
        context->pointers[n] = context->blocks[n].data;
    }
    ourcc_reserve(task, &session->arena, context->binding.arena, "the memory between kernels");
}

static bool writes_state(struct task *task, const struct plan *plan, const ourcc_session *session, const struct context *context,
                         const struct step *step) {
    for (size_t n = 0; n < step->write_count; ++n) {
        const struct buffer *buffer = &plan->buffers[step->writes[n]];
        const struct buffer *root = buffer->place == PLACE_ALIAS ? &plan->buffers[buffer->root] : buffer;
        if (root->place != PLACE_STATE) continue;
        /* A copy between two buffers of one place moves nothing: so a version in place begins. */
        if (step->kind == STEP_COPY &&
            address(plan, session, context, task, step->source) == address(plan, session, context, task, step->writes[n]))
            continue;
        return true;
    }
    return false;
}

/* What a status of native code means: 1 + the number of the check that failed, or minus what a kernel that failed gave. */
static _Noreturn void fail_call(struct task *task, const struct plan *plan, ourcc_session *session, struct context *context, int32_t status) {
    size_t ran = status > 0 && (size_t)status <= plan->step_count ? (size_t)status - 1 : plan->step_count;
    bool is_written = false;
    for (size_t n = 0; n < ran && !is_written; ++n) is_written = writes_state(task, plan, session, context, &plan->steps[n]);
    if (is_written) {
        static const char text[] = " failed midway";
        size_t length = strlen(plan->name) < 200 ? strlen(plan->name) : 200;
        memcpy(session->failure, plan->name, length);
        memcpy(session->failure + length, text, sizeof text);
        session->has_failed = true;
    }
    if (status == -ENOMEM) ourcc_fail(task, OURCC_MEMORY, "out of memory: a kernel found none for its arrays in function '%s'", plan->name);
    if (status < 0) ourcc_fail(task, OURCC_FAILED, "a kernel of the engine failed with status %d in function '%s'", -status, plan->name);
    const struct step *step = ran < plan->step_count ? &plan->steps[ran] : NULL;
    bool is_place = step && step->kind == STEP_CHECK_PLACE;
    if (!step || (step->kind != STEP_CHECK && !is_place)) ourcc_fail(task, OURCC_FAILED, "native code of the engine failed with status %d", status);
    const char *at = step->origin ? ", at " : "", *origin = step->origin ? step->origin : "";
    if (!step->size) ourcc_fail(task, OURCC_INPUT, "%s divides integers by 0%s%.300s", step->subject, at, origin);
    int64_t size = ourcc_evaluate(task, step->size, context->binding.values);
    int64_t index = is_place ? ourcc_evaluate(task, step->place, context->binding.values)
                             : *(const int64_t *)address(plan, session, context, task, step->worst);
    if (size < 1)
        ourcc_fail(task, OURCC_INPUT, "index %lld of %s is out of range, expected none, as what it indexes is empty%s%.300s",
                   (long long)index, step->subject, at, origin);
    ourcc_fail(task, OURCC_INPUT, "index %lld of %s is out of range, expected %lld..%lld%s%.300s", (long long)index, step->subject,
               (long long)(step->negative ? -size : 0), (long long)(size - 1), at, origin);
}

static void give(struct task *task, const struct plan *plan, ourcc_session *session, struct context *context, size_t number,
                 ourcc_tensor *output) {
    const ourcc_port *port = &plan->output_ports[number];
    size_t buffer = plan->outputs[number], bytes = (size_t)context->binding.bytes[buffer];
    char *source = address(plan, session, context, task, buffer), *target = output->data;
    if (plan->copied[number] && !target) {
        ourcc_reserve(task, &context->results[number], bytes, port->name);
        target = context->results[number].data;
    }
    if (plan->copied[number] && bytes) memcpy(target, source, bytes);
    if (!output->data) {
        output->data = plan->copied[number] ? target : source;
        output->bytes = bytes;
    }
    output->dtype = port->dtype;
    output->rank = port->rank;
    output->shape = context->binding.shapes[number];
}

/* What an earlier run gave is no memory of the caller's: whoever runs again on the same outputs means the session's. */
static void take_back(const struct plan *plan, const struct context *context, ourcc_tensor *outputs) {
    for (size_t n = 0; n < plan->output_count; ++n) {
        size_t number = plan->copied[n] ? plan->buffer_count + n : plan->outputs[n];
        const char *data = outputs[n].data;
        if (data && (data == block_at(plan, context, number)->data || data == context->given[number].data)) outputs[n].data = NULL;
    }
}

static void run(struct task *task, ourcc_session *session, const struct plan *plan, const ourcc_tensor *inputs, ourcc_tensor *outputs) {
    if (plan->has_states && session->has_failed)
        ourcc_fail(task, OURCC_FAILED, "the session's states are of no use since a call failed: function %s; ourcc_session_reset begins anew",
                   session->failure);
    for (size_t n = 0; n < plan->input_count; ++n) check_input(task, &plan->input_ports[n], &inputs[n]);
    struct context *context = context_of(task, session, plan);
    ourcc_bind(task, plan, inputs, &context->binding);
    take_back(plan, context, outputs);
    for (size_t n = 0; n < plan->output_count; ++n) check_output(task, plan, context, inputs, outputs, n);
    keep_inputs(task, plan, context, inputs);
    place_buffers(task, plan, session, context, inputs, outputs);
    if (plan->run) {
        int32_t status = plan->run(context->pointers, context->binding.values, session->arena.data, session->engine->threads);
        if (status) fail_call(task, plan, session, context, status);
    }
    for (size_t n = 0; n < plan->output_count; ++n) give(task, plan, session, context, n, &outputs[n]);
}

/* --- the public functions --- */

/* Takes the session for one call, which gives it back at its end. */
static void take(struct task *task, ourcc_session *session) {
    if (atomic_exchange(&session->is_busy, true))
        ourcc_fail(task, OURCC_BUSY, "a session serves one call at a time, and another thread is using it: give each thread one of its own");
    task->taken = &session->is_busy;
}

struct opening {
    ourcc_engine *engine;
    ourcc_session **session, *made;
};

static void open_session(struct task *task, void *call) {
    struct opening *opening = call;
    ourcc_engine *engine = opening->engine;
    if (!engine) ourcc_fail(task, OURCC_USAGE, "got no engine");
    if (!opening->session) ourcc_fail(task, OURCC_USAGE, "got no place for the session");
    ourcc_session *made = opening->made = calloc(1, sizeof *made);
    if (!made) ourcc_fail(task, OURCC_MEMORY, "out of memory: %zu bytes are needed", sizeof *made);
    made->engine = engine;
    ourcc_hold(engine);
    made->contexts = ourcc_take(task, &made->memory, engine->plan_count + 1, sizeof *made->contexts);
    made->states = ourcc_take(task, &made->memory, engine->state_count + 1, sizeof *made->states);
    begin_states(task, made);
}

ourcc_status ourcc_session_open(ourcc_engine *engine, ourcc_session **session, ourcc_error *error) {
    struct opening opening = {engine, session, NULL};
    ourcc_status status = ourcc_try(open_session, &opening, error);
    if (status != OURCC_OK) free_session(opening.made);
    if (session) *session = status == OURCC_OK ? opening.made : NULL;
    return status;
}

void ourcc_session_close(ourcc_session *session) { free_session(session); }

static void reset(struct task *task, void *call) {
    ourcc_session *session = call;
    if (!session) ourcc_fail(task, OURCC_USAGE, "got no session");
    take(task, session);
    begin_states(task, session);
}

ourcc_status ourcc_session_reset(ourcc_session *session, ourcc_error *error) { return ourcc_try(reset, session, error); }

/* A state that is read into memory, or written from it. */
struct moving {
    ourcc_session *session;
    const char *state;
    void *into;
    const void *from;
    size_t bytes;
};

static void move(struct task *task, void *call) {
    const struct moving *moving = call;
    ourcc_session *session = moving->session;
    size_t number;
    bool has_memory = moving->into || moving->from;
    if (!session) ourcc_fail(task, OURCC_USAGE, "got no session");
    take(task, session);
    if (session->has_failed)
        ourcc_fail(task, OURCC_FAILED, "the session's states are of no use since a call failed: function %s", session->failure);
    if (!moving->state || !ourcc_find(&session->engine->state_names, moving->state, &number))
        ourcc_fail(task, OURCC_USAGE, "there is no state '%.80s'", moving->state ? moving->state : "");
    size_t size = ourcc_static_bytes(&session->engine->states[number].type);
    if (moving->bytes != size || (!has_memory && size))
        ourcc_fail(task, OURCC_USAGE, "state '%s' has %zu bytes, got memory of %zu", moving->state, size, has_memory ? moving->bytes : 0);
    if (size && moving->into) memcpy(moving->into, session->states[number].data, size);
    if (size && moving->from) memcpy(session->states[number].data, moving->from, size);
}

ourcc_status ourcc_state_read(ourcc_session *session, const char *state, void *data, size_t bytes, ourcc_error *error) {
    return ourcc_try(move, &(struct moving){session, state, data, NULL, bytes}, error);
}

ourcc_status ourcc_state_write(ourcc_session *session, const char *state, const void *data, size_t bytes, ourcc_error *error) {
    return ourcc_try(move, &(struct moving){session, state, NULL, data, bytes}, error);
}

struct running {
    ourcc_session *session;
    const char *function;
    const ourcc_tensor *inputs;
    size_t input_count;
    ourcc_tensor *outputs;
    size_t output_count;
};

static void run_it(struct task *task, void *call) {
    const struct running *running = call;
    if (!running->session) ourcc_fail(task, OURCC_USAGE, "got no session");
    const struct plan *plan = ourcc_plan_of(running->session->engine, running->function);
    if (!plan) ourcc_fail(task, OURCC_USAGE, "there is no function '%.80s'", running->function);
    if (running->input_count != plan->input_count || (!running->inputs && plan->input_count))
        ourcc_fail(task, OURCC_INPUT, "got %zu inputs, expected %zu", running->inputs ? running->input_count : 0, plan->input_count);
    if (running->output_count != plan->output_count || (!running->outputs && plan->output_count))
        ourcc_fail(task, OURCC_USAGE, "got %zu outputs, expected %zu", running->outputs ? running->output_count : 0, plan->output_count);
    take(task, running->session);
    run(task, running->session, plan, running->inputs, running->outputs);
}

ourcc_status ourcc_run(ourcc_session *session, const char *function, const ourcc_tensor *inputs, size_t input_count,
                       ourcc_tensor *outputs, size_t output_count, ourcc_error *error) {
    return ourcc_try(run_it, &(struct running){session, function, inputs, input_count, outputs, output_count}, error);
}
