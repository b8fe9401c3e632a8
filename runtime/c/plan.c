/* The plan of a function: what of it a call needs, read from the JSON that engines hold; and why one cannot run here.
 *
 * Native code is made for a plan and carries its digest, so what the steps do is taken at the code's word. What is read here
 * is where buffers lie, which sizes follow from which, and what to say where a check fails.
 */
#include "internal.h"

#include <stdio.h>
#include <string.h>

#define MOST_RANK 64
#define MOST_ABOVE (1 << 20) /* names of slots that others lie above, in all */

struct reading {
    struct document document;
    struct plan *plan;
};

static const char *text_of(const struct reading *reading, const struct json *json, const char *what) {
    return ourcc_expect(&reading->document, json, JSON_TEXT, what)->text;
}

static void *take(const struct reading *reading, size_t count, size_t size) {
    return ourcc_take(reading->document.task, reading->document.memory, count + 1, size);
}

/* The parts of a list that may be absent; their number in `count`. */
static const struct json *parts(const struct reading *reading, const struct json *object, const char *key, size_t *count) {
    const struct json *list = ourcc_part_of(&reading->document, object, key, JSON_LIST);
    *count = list ? list->count : 0;
    return list ? list->first : NULL;
}

/* A list of exactly so many parts. */
static const struct json *row(const struct reading *reading, const struct json *json, size_t count, const char *what) {
    if (ourcc_expect(&reading->document, json, JSON_LIST, what)->count != count)
        ourcc_damaged(&reading->document, "%s: got a list of %zu, expected one of %zu", what, json->count, count);
    return json->first;
}

static const struct dim *dim_of(const struct reading *reading, const struct json *json) {
    if (!json) ourcc_damaged(&reading->document, "a number of a step or buffer is missing");
    const struct dim *dim = ourcc_read_dim(&reading->document, &reading->plan->symbol_names, json);
    for (size_t n = 0; dim->kind != DIM_NUMBER && n < reading->plan->symbol_count; ++n)
        if (ourcc_mentions(dim, n)) reading->plan->symbols[n].is_used = true;
    return dim;
}

static void dims_of(const struct reading *reading, const struct json *object, const char *key) {
    size_t count;
    for (const struct json *each = parts(reading, object, key, &count); each; each = each->next) (void)dim_of(reading, each);
}

static size_t find(const struct reading *reading, const struct names *names, const struct json *json, const char *what) {
    size_t number;
    const char *name = text_of(reading, json, what);
    if (!ourcc_find(names, name, &number)) ourcc_damaged(&reading->document, "there is no %s '%.80s'", what, name);
    return number;
}

static size_t buffer_of(const struct reading *reading, const struct json *json) {
    return find(reading, &reading->plan->buffer_names, json, "buffer");
}

static void name(const struct reading *reading, struct names *names, const char *text, size_t number, const char *what) {
    if (!ourcc_name(reading->document.task, reading->document.memory, names, text, number))
        ourcc_damaged(&reading->document, "two %s have the name '%.80s'", what, text);
}

static struct type type_of(const struct reading *reading, const struct json *object) {
    const struct json *type = ourcc_need(&reading->document, object, "type", JSON_OBJECT);
    const char *dtype = ourcc_need(&reading->document, type, "dtype", JSON_TEXT)->text;
    struct type found =
        ourcc_read_type(&reading->document, &reading->plan->symbol_names, dtype, ourcc_need(&reading->document, type, "shape", JSON_LIST));
    if (found.rank > MOST_RANK) ourcc_damaged(&reading->document, "a tensor has %zu axes", found.rank);
    for (size_t n = 0; n < found.rank; ++n)
        for (size_t symbol = 0; found.shape[n]->kind != DIM_NUMBER && symbol < reading->plan->symbol_count; ++symbol)
            if (ourcc_mentions(found.shape[n], symbol)) reading->plan->symbols[symbol].is_used = true;
    return found;
}

/* --- symbols --- */

static int64_t bound(const struct reading *reading, const struct json *range, const char *key, int64_t absent, int64_t none) {
    const struct json *found = ourcc_field(range, key);
    if (!found) return absent;
    return found->kind == JSON_NULL ? none : ourcc_expect(&reading->document, found, JSON_INTEGER, key)->integer;
}

/* Ranges and divisors; a bound that is absent has its default: 0 below, none above. */
static void read_symbols(const struct reading *reading, const struct json *json) {
    struct plan *plan = reading->plan;
    const struct json *facts = ourcc_need(&reading->document, json, "symbols", JSON_OBJECT);
    size_t count, number = 0;
    const struct json *each = parts(reading, facts, "ranges", &plan->symbol_count);
    plan->symbols = take(reading, plan->symbol_count, sizeof *plan->symbols);
    plan->symbol_ports = take(reading, plan->symbol_count, sizeof *plan->symbol_ports);
    for (; each; each = each->next, ++number) {
        const struct json *pair = row(reading, each, 2, "range"), *range = ourcc_expect(&reading->document, pair->next, JSON_OBJECT, "range");
        plan->symbol_ports[number].name = text_of(reading, pair, "symbol");
        name(reading, &plan->symbol_names, plan->symbol_ports[number].name, number, "symbols");
        plan->symbols[number].low = bound(reading, range, "low", 0, INT64_MIN);
        plan->symbols[number].high = bound(reading, range, "high", INT64_MAX, INT64_MAX);
        plan->symbols[number].divisor = 1;
    }
    for (each = parts(reading, facts, "divisors", &count); each; each = each->next) {
        const struct json *pair = row(reading, each, 2, "divisor");
        int64_t divisor = ourcc_expect(&reading->document, pair->next, JSON_INTEGER, "divisor")->integer;
        if (divisor < 1) ourcc_damaged(&reading->document, "a divisor is below 1");
        plan->symbols[find(reading, &plan->symbol_names, pair, "symbol")].divisor = divisor;
    }
    for (number = 0; number < plan->symbol_count; ++number) {
        const struct symbol *symbol = &plan->symbols[number];
        plan->symbol_ports[number] = (ourcc_symbol){plan->symbol_ports[number].name, symbol->low, symbol->high, symbol->divisor};
    }
    each = parts(reading, facts, "broadcasts", &plan->broadcast_count);
    plan->broadcasts = take(reading, plan->broadcast_count, sizeof *plan->broadcasts);
    for (number = 0; each; each = each->next, ++number) {
        const struct json *pair = row(reading, each, 2, "broadcast");
        plan->broadcasts[number][0] = dim_of(reading, pair);
        plan->broadcasts[number][1] = dim_of(reading, pair->next);
    }
}

/* --- storage --- */

static const char *kind_of(const struct reading *reading, const struct json *json) {
    return json->kind == JSON_TEXT ? json->text : ourcc_need(&reading->document, json, "kind", JSON_TEXT)->text;
}

static void read_storage(const struct reading *reading, const struct json *storage, struct buffer *buffer) {
    static const char *const kinds[] = {"input", "output", "constant", "arena", "dynamic", "state", "alias"};
    const char *kind = kind_of(reading, storage);
    size_t number = 0;
    while (number < 7 && strcmp(kinds[number], kind) != 0) ++number;
    if (number == 7) ourcc_damaged(&reading->document, "buffer %.80s lies in '%.40s'", buffer->name, kind);
    buffer->place = (enum place)number;
    buffer->what = kinds[number];
    if (buffer->place == PLACE_CONSTANT) buffer->key = ourcc_constant_key(&reading->document, storage);
    if (buffer->place == PLACE_STATE) buffer->key = ourcc_need(&reading->document, storage, "name", JSON_TEXT)->text;
    if (buffer->place == PLACE_ARENA)
        buffer->root = find(reading, &reading->plan->slot_names, ourcc_field(storage, "slot"), "slot");
    if (buffer->place == PLACE_ALIAS) {
        buffer->root = buffer_of(reading, ourcc_field(storage, "root"));
        const struct json *offset = ourcc_field(storage, "offset");
        if (!offset) ourcc_damaged(&reading->document, "got no offset");
        buffer->offset = dim_of(reading, offset);
    }
}

static void read_slots(const struct reading *reading, const struct json *json) {
    struct plan *plan = reading->plan;
    size_t number = 0, above = 0;
    const struct json *each = parts(reading, json, "slots", &plan->slot_count);
    plan->slots = take(reading, plan->slot_count, sizeof *plan->slots);
    for (; each; each = each->next, ++number) {
        struct slot *slot = &plan->slots[number];
        const struct json *below = parts(reading, each, "above", &slot->above_count);
        if ((above += slot->above_count) > MOST_ABOVE) ourcc_damaged(&reading->document, "slots lie above more than %d others", MOST_ABOVE);
        slot->above = take(reading, slot->above_count, sizeof *slot->above);
        for (size_t n = 0; below; below = below->next) slot->above[n++] = find(reading, &plan->slot_names, below, "slot before it");
        name(reading, &plan->slot_names, ourcc_need(&reading->document, each, "name", JSON_TEXT)->text, number, "slots");
        const struct json *size = parts(reading, each, "sizes", &slot->count);
        slot->sizes = take(reading, slot->count, sizeof *slot->sizes);
        for (size_t n = 0; size; size = size->next) slot->sizes[n++] = dim_of(reading, size);
    }
}

static void read_buffers(const struct reading *reading, const struct json *json) {
    struct plan *plan = reading->plan;
    const struct json *list = ourcc_need(&reading->document, json, "buffers", JSON_LIST), *each = list->first;
    plan->buffer_count = list->count;
    plan->buffers = take(reading, plan->buffer_count, sizeof *plan->buffers);
    for (size_t n = 0; each; each = each->next, ++n) {
        plan->buffers[n].name = ourcc_need(&reading->document, each, "name", JSON_TEXT)->text;
        plan->buffers[n].type = type_of(reading, each);
        name(reading, &plan->buffer_names, plan->buffers[n].name, n, "buffers");
    }
    each = list->first;
    for (size_t n = 0; each; each = each->next, ++n) {
        const struct json *storage = ourcc_field(each, "storage");
        if (!storage) ourcc_damaged(&reading->document, "got no storage");
        read_storage(reading, storage, &plan->buffers[n]);
    }
    for (size_t n = 0; n < plan->buffer_count; ++n)
        if (plan->buffers[n].place == PLACE_ALIAS && plan->buffers[plan->buffers[n].root].place == PLACE_ALIAS)
            ourcc_damaged(&reading->document, "buffer %.80s is an alias of an alias", plan->buffers[n].name);
}

/* --- inputs, outputs, states --- */

static size_t read_ports(const struct reading *reading, const struct json *json, const char *key, size_t **buffers, ourcc_port **ports) {
    size_t count, n = 0;
    const struct json *each = parts(reading, json, key, &count);
    *buffers = take(reading, count, sizeof **buffers);
    *ports = take(reading, count, sizeof **ports);
    for (; each; each = each->next, ++n) {
        const struct json *pair = row(reading, each, 2, key);
        (*buffers)[n] = buffer_of(reading, pair->next);
        (*ports)[n] = ourcc_port_of(&reading->document, text_of(reading, pair, "name"), &reading->plan->buffers[(*buffers)[n]].type);
    }
    return count;
}

static void read_inputs_and_outputs(const struct reading *reading, const struct json *json) {
    struct plan *plan = reading->plan;
    plan->input_count = read_ports(reading, json, "inputs", &plan->inputs, &plan->input_ports);
    plan->output_count = read_ports(reading, json, "outputs", &plan->outputs, &plan->output_ports);
    plan->copied = take(reading, plan->output_count, sizeof *plan->copied);
    for (size_t n = 0; n < plan->input_count; ++n)
        if (plan->buffers[plan->inputs[n]].place != PLACE_INPUT)
            ourcc_damaged(&reading->document, "input '%.80s' is not the caller's memory", plan->input_ports[n].name);
    for (size_t n = 0; n < plan->output_count; ++n) {
        plan->copied[n] = plan->buffers[plan->outputs[n]].place != PLACE_OUTPUT;
        for (size_t before = 0; before < n; ++before) plan->copied[n] |= plan->outputs[before] == plan->outputs[n];
    }
    const struct json *each = parts(reading, json, "numbers", &plan->number_count);
    plan->numbers = take(reading, plan->number_count, sizeof *plan->numbers);
    for (size_t n = 0; each; each = each->next, ++n) {
        const struct json *pair = row(reading, each, 2, "number");
        size_t buffer = buffer_of(reading, pair->next), input = 0;
        while (input < plan->input_count && plan->inputs[input] != buffer) ++input;
        plan->numbers[n] = (struct number){find(reading, &plan->symbol_names, pair, "symbol"), input};
        if (input == plan->input_count || plan->buffers[buffer].type.dtype != OURCC_I64 || plan->buffers[buffer].type.rank)
            ourcc_damaged(&reading->document, "a number is no scalar i64 among the inputs");
    }
}

static void read_states(const struct reading *reading, const struct json *json) {
    struct plan *plan = reading->plan;
    const struct json *each = parts(reading, json, "states", &plan->state_count);
    plan->states = take(reading, plan->state_count, sizeof *plan->states);
    plan->has_states = plan->state_count > 0;
    for (size_t n = 0; each; each = each->next, ++n) {
        const struct json *initial = ourcc_part_of(&reading->document, each, "initial", JSON_TEXT);
        plan->states[n].name = ourcc_need(&reading->document, each, "name", JSON_TEXT)->text;
        plan->states[n].initial = initial ? initial->text : "";
        plan->states[n].type = type_of(reading, each);
        if (ourcc_static_bytes(&plan->states[n].type) == SIZE_MAX)
            ourcc_damaged(&reading->document, "state '%.80s' has no known size", plan->states[n].name);
    }
    for (size_t n = 0; n < plan->buffer_count; ++n) {
        size_t state = 0;
        if (plan->buffers[n].place != PLACE_STATE) continue;
        while (state < plan->state_count && strcmp(plan->states[state].name, plan->buffers[n].key) != 0) ++state;
        if (state == plan->state_count) ourcc_damaged(&reading->document, "there is no state '%.80s'", plan->buffers[n].key);
    }
}

/* --- steps --- */

static const char *first_source(const struct reading *reading, const struct json *step) {
    size_t count;
    const struct json *sources = parts(reading, step, "sources", &count);
    return sources ? text_of(reading, sources, "source") : NULL;
}

static void read_launch(const struct reading *reading, const struct json *json, struct step *step) {
    size_t count;
    step->kind = STEP_LAUNCH;
    const struct json *each = parts(reading, json, "writes", &step->write_count);
    step->writes = take(reading, step->write_count, sizeof *step->writes);
    const char *source = first_source(reading, json);
    for (size_t n = 0; each; each = each->next, ++n) {
        step->writes[n] = buffer_of(reading, each);
        if (source) reading->plan->buffers[step->writes[n]].what = source;
    }
    for (each = parts(reading, json, "symbols", &count); each; each = each->next) (void)dim_of(reading, row(reading, each, 2, "symbol")->next);
    for (each = parts(reading, json, "variants", &count); each; each = each->next) {
        const struct json *guard = ourcc_need(&reading->document, each, "guard", JSON_OBJECT);
        dims_of(reading, each, "grid");
        dims_of(reading, guard, "zero");
        dims_of(reading, guard, "positive");
    }
}

static void read_check(const struct reading *reading, const struct json *json, struct step *step) {
    const struct json *size = ourcc_field(json, "size");
    step->kind = STEP_CHECK;
    step->worst = buffer_of(reading, ourcc_field(json, "worst"));
    step->size = size && size->kind != JSON_NULL ? dim_of(reading, size) : NULL;
    step->negative = ourcc_need(&reading->document, json, "negative", JSON_TRUE)->kind == JSON_TRUE;
    step->subject = ourcc_need(&reading->document, json, "subject", JSON_TEXT)->text;
    step->origin = first_source(reading, json);
    const struct type *type = &reading->plan->buffers[step->worst].type;
    if (type->dtype != OURCC_I64 || type->rank) ourcc_damaged(&reading->document, "a check reads what is no scalar i64");
}

static void read_check_place(const struct reading *reading, const struct json *json, struct step *step) {
    step->kind = STEP_CHECK_PLACE;
    step->place = dim_of(reading, ourcc_field(json, "place"));
    step->size = dim_of(reading, ourcc_field(json, "size"));
    step->negative = ourcc_need(&reading->document, json, "negative", JSON_TRUE)->kind == JSON_TRUE;
    step->subject = ourcc_need(&reading->document, json, "subject", JSON_TEXT)->text;
    step->origin = first_source(reading, json);
}

/* A step that only Python takes: the plan is read no further. */
static const char *needs_python(const struct reading *reading, const char *kind, const struct json *json, size_t number) {
    char text[500];
    bool is_host = strcmp(kind, "host") == 0;
    const char *what = ourcc_need(&reading->document, json, is_host ? "routine" : "target", JSON_TEXT)->text;
    const char *source = first_source(reading, json);
    int length = snprintf(text, sizeof text, "step %zu of function '%.80s' is the %s %.100s%s%.100s, which needs Python", number,
                          reading->plan->name, is_host ? "host routine" : "framework call", what, source ? " for " : "",
                          source ? source : "");
    return ourcc_take_text(reading->document.task, reading->document.memory, text, (size_t)length);
}

static void read_steps(const struct reading *reading, const struct json *json) {
    struct plan *plan = reading->plan;
    const struct json *list = ourcc_need(&reading->document, json, "steps", JSON_LIST), *each = list->first;
    plan->step_count = list->count;
    plan->steps = take(reading, list->count, sizeof *plan->steps);
    for (size_t n = 0; each && !plan->needs; each = each->next, ++n) {
        struct step *step = &plan->steps[n];
        const char *kind = kind_of(reading, each);
        if (ourcc_is_launched(&reading->document, kind, each))
            read_launch(reading, each, step);
        else if (strcmp(kind, "check") == 0)
            read_check(reading, each, step);
        else if (strcmp(kind, "check_place") == 0)
            read_check_place(reading, each, step);
        else if (strcmp(kind, "copy") == 0 || strcmp(kind, "zero") == 0) {
            step->kind = *kind == 'c' ? STEP_COPY : STEP_ZERO;
            if (step->kind == STEP_COPY) step->source = buffer_of(reading, ourcc_field(each, "source"));
            step->writes = take(reading, 1, sizeof *step->writes);
            step->writes[step->write_count++] = buffer_of(reading, ourcc_field(each, "target"));
        } else if (strcmp(kind, "host") == 0 || strcmp(kind, "call") == 0)
            plan->needs = needs_python(reading, kind, each, n);
        else
            ourcc_damaged(&reading->document, "step %zu is of the kind '%.40s'", n, kind);
    }
}

/* --- which sizes tell which symbols --- */

/* The one symbol of a size that has no value yet; false if there is none, or more than one. */
static bool only_unknown(const struct plan *plan, const struct dim *dim, size_t *symbol) {
    size_t count = 0;
    for (size_t n = 0; n < plan->symbol_count; ++n)
        if (!plan->symbols[n].is_settled && ourcc_mentions(dim, n)) {
            *symbol = n;
            ++count;
        }
    return count == 1;
}

/* One round over all sizes of inputs; whether it told anything. */
static bool tell_some(struct plan *plan) {
    size_t before = plan->solve_count;
    for (size_t input = 0; input < plan->input_count; ++input) {
        const struct type *type = &plan->buffers[plan->inputs[input]].type;
        for (size_t axis = 0; axis < type->rank; ++axis) {
            size_t symbol = 0;
            if (!only_unknown(plan, type->shape[axis], &symbol)) continue;
            int64_t factor = ourcc_factor(type->shape[axis], symbol);
            if (factor == 0) continue;
            plan->symbols[symbol].is_settled = true;
            plan->solves[plan->solve_count++] = (struct solve){symbol, input, axis, factor};
        }
    }
    return plan->solve_count > before;
}

static void solve(const struct reading *reading) {
    struct plan *plan = reading->plan;
    plan->solves = take(reading, plan->symbol_count, sizeof *plan->solves);
    for (size_t n = 0; n < plan->symbol_count; ++n) plan->symbols[n].is_settled = plan->symbols[n].low == plan->symbols[n].high;
    for (size_t n = 0; n < plan->number_count; ++n) plan->symbols[plan->numbers[n].symbol].is_settled = true;
    while (tell_some(plan)) {
    }
    for (size_t n = 0; n < plan->symbol_count; ++n)
        if (plan->symbols[n].is_used && !plan->symbols[n].is_settled && !plan->needs)
            ourcc_damaged(&reading->document, "symbol %.80s is the size of no input and the value of none", plan->symbol_ports[n].name);
}

void ourcc_read_plan(struct task *task, struct file *file, const char *member, const char *function, const char *text, size_t size,
                     struct plan *plan) {
    struct reading reading = {{task, &file->memory, file->path, member}, plan};
    const struct json *json = ourcc_expect(&reading.document, ourcc_read_json(&reading.document, text, size), JSON_OBJECT, "plan");
    plan->name = function;
    read_symbols(&reading, json);
    read_slots(&reading, json);
    read_buffers(&reading, json);
    read_inputs_and_outputs(&reading, json);
    read_states(&reading, json);
    read_steps(&reading, json);
    solve(&reading);
}
