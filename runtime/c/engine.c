/* The engine: opened from its file, the part chosen for this CPU, its plans bound to its code and its constants; asked what it is. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the part for this machine --- */

/* name, family, machine, features */
struct part {
    const char *name, *family, *machine;
    const struct json *features;
};

static struct part read_part(const struct document *document, const struct json *entry) {
    if (ourcc_expect(document, entry, JSON_LIST, "part")->count != 4) ourcc_damaged(document, "a part has %zu fields", entry->count);
    const struct json *name = entry->first, *family = name->next, *machine = family->next, *features = machine->next;
    struct part part = {.features = ourcc_expect(document, features, JSON_LIST, "features")->first};
    part.name = ourcc_expect(document, name, JSON_TEXT, "part")->text;
    part.family = ourcc_expect(document, family, JSON_TEXT, "family")->text;
    part.machine = ourcc_expect(document, machine, JSON_TEXT, "machine")->text;
    for (const struct json *each = part.features; each; each = each->next) (void)ourcc_expect(document, each, JSON_TEXT, "feature");
    return part;
}

/* Why a part does not run here, put behind its name; whether it does. */
static bool runs_here(const struct part *part, const struct cpu *cpu, bool has_steps, struct line *why) {
    size_t before = why->length, lacking = 0;
    bool has_tiles = false;
    ourcc_add(why, "%s%s: ", before ? "; " : "", part->name);
    if (strcmp(part->family, "cpu") != 0) {
        ourcc_add(why, "it is for %s, and this runtime runs parts for CPUs", part->family);
        return false;
    }
    if (has_steps && strcmp(part->machine, cpu->machine) != 0) {
        ourcc_add(why, "it is for %s, this machine is %s", part->machine, cpu->machine);
        return false;
    }
    for (const struct json *each = part->features; has_steps && each; each = each->next) {
        has_tiles |= strcmp(each->text, "amx_tile") == 0;
        if (!ourcc_has_flag(cpu, each->text)) ourcc_add(why, "%s%s", lacking++ ? ", " : "it needs ", each->text);
    }
    if (lacking) ourcc_add(why, ", which this cpu lacks");
    if (!lacking && has_tiles && !ourcc_may_use_tiles()) {
        ourcc_add(why, "it needs amx_tile, which the system does not let this process use");
        ++lacking;
    }
    return !lacking;
}

/* --- plans --- */

static const char *plan_text(const struct document *document, struct file *file, const char *part, const char *function, size_t *size) {
    char path[600];
    snprintf(path, sizeof path, "plan/%.250s/%.250s.json", part, function);
    const char *text = ourcc_read_member(document->task, file, path, size);
    if (!text) ourcc_damaged(document, "engine has no plan of its function %.80s for its part %.80s", function, part);
    return text;
}

/* The digest that native code carries: of the list of the plans' names and digests, as JSON. */
static void digest_plans(const struct document *document, const ourcc_engine *engine, const struct digest *digests, char result[65]) {
    size_t room = 3, length = 0;
    for (size_t n = 0; n < engine->plan_count; ++n) room += strlen(engine->plans[n].name) + 80;
    char *text = ourcc_take(document->task, document->memory, room, 1), digits[65];
    text[length++] = '[';
    for (size_t n = 0; n < engine->plan_count; ++n) {
        ourcc_hexadecimal(&digests[n], digits);
        length += (size_t)sprintf(text + length, "%s[\"%s\", \"%s\"]", n ? ", " : "", engine->plans[n].name, digits);
    }
    text[length++] = ']';
    struct digest digest = ourcc_sha256(text, length);
    ourcc_hexadecimal(&digest, result);
}

/* Whether two ports are the same: name, dtype, sizes as text. */
static bool is_port(const struct json *written, const struct document *document, const ourcc_port *port) {
    if (written->kind != JSON_LIST || written->count != 3) ourcc_damaged(document, "a port is damaged");
    const struct json *name = written->first, *dtype = name->next, *shape = dtype->next;
    if (strcmp(ourcc_expect(document, name, JSON_TEXT, "port")->text, port->name) != 0) return false;
    if (strcmp(ourcc_expect(document, dtype, JSON_TEXT, "dtype")->text, ourcc_dtype_name(port->dtype)) != 0) return false;
    if (ourcc_expect(document, shape, JSON_LIST, "shape")->count != port->rank) return false;
    size_t axis = 0;
    for (const struct json *size = shape->first; size; size = size->next, ++axis) {
        bool is_number = size->kind == JSON_INTEGER && port->shape[axis] >= 0 && size->integer == port->shape[axis];
        if (!is_number && !(size->kind == JSON_TEXT && strcmp(size->text, port->sizes[axis]) == 0)) return false;
    }
    return true;
}

static bool are_ports(const struct json *list, const struct document *document, const ourcc_port *ports, size_t count) {
    if (ourcc_expect(document, list, JSON_LIST, "ports")->count != count) return false;
    for (const struct json *each = list->first; each; each = each->next)
        if (!is_port(each, document, ports++)) return false;
    return true;
}

static bool are_states(const struct json *list, const struct document *document, const struct plan *plan) {
    if (ourcc_expect(document, list, JSON_LIST, "states")->count != plan->state_count) return false;
    size_t n = 0;
    for (const struct json *each = list->first; each; each = each->next)
        if (strcmp(ourcc_expect(document, each, JSON_TEXT, "state")->text, plan->states[n++].name) != 0) return false;
    return true;
}

/* The functions of the manifest, and behind them those that only functions call. */
static void name_plans(const struct document *document, ourcc_engine *engine) {
    const struct json *functions = ourcc_need(document, engine->file.manifest, "functions", JSON_LIST);
    const struct json *bodies = ourcc_need(document, engine->file.manifest, "bodies", JSON_LIST);
    engine->function_count = functions->count;
    engine->plan_count = functions->count + bodies->count;
    engine->plans = ourcc_take(document->task, document->memory, engine->plan_count + 1, sizeof *engine->plans);
    if (!functions->count) ourcc_damaged(document, "engine has no function");
    size_t n = 0;
    for (const struct json *each = functions->first; each; each = each->next) {
        if (ourcc_expect(document, each, JSON_LIST, "function")->count != 4) ourcc_damaged(document, "a function is damaged");
        engine->plans[n++].name = ourcc_expect(document, each->first, JSON_TEXT, "function")->text;
    }
    for (const struct json *each = bodies->first; each; each = each->next)
        engine->plans[n++].name = ourcc_expect(document, each, JSON_TEXT, "body")->text;
    for (n = 0; n < engine->function_count; ++n)
        if (!ourcc_name(document->task, document->memory, &engine->function_names, engine->plans[n].name, n))
            ourcc_damaged(document, "engine has two functions of one name");
}

/* What no call needs is there all the same, in the form that it has. */
static void check_rest(const struct document *document, const struct file *file) {
    static const char *const members[] = {"graph.ir", "ourcc.lock", "report.json"};
    size_t number;
    for (size_t n = 0; n < 3; ++n)
        if (!ourcc_find(&file->names, members[n], &number)) ourcc_damaged(document, "engine has no member %s", members[n]);
    (void)ourcc_need(document, file->manifest, "provenance", JSON_OBJECT);
    for (const struct json *each = ourcc_need(document, file->manifest, "symbols", JSON_LIST)->first; each; each = each->next)
        if (each->kind != JSON_LIST || each->count != 4) ourcc_damaged(document, "a symbol is damaged");
}

/* Reads the plans of a part and their digest; whether any has steps. */
static bool read_plans(const struct document *document, ourcc_engine *engine, const char *part, char digest[65]) {
    struct digest *digests = ourcc_take(document->task, document->memory, engine->plan_count + 1, sizeof *digests);
    bool has_steps = false;
    for (size_t n = 0; n < engine->plan_count; ++n) {
        struct plan *plan = &engine->plans[n];
        char member[600];
        size_t size;
        const char *name = plan->name, *text = plan_text(document, &engine->file, part, name, &size);
        snprintf(member, sizeof member, "plan/%.250s/%.250s.json", part, name);
        member[sizeof member - 1] = 0;
        *plan = (struct plan){0};
        ourcc_read_plan(document->task, &engine->file, ourcc_take_text(document->task, document->memory, member, strlen(member)), name,
                        text, size, plan);
        digests[n] = ourcc_sha256(text, size);
        has_steps |= plan->step_count > 0;
    }
    digest_plans(document, engine, digests, digest);
    return has_steps;
}

static void check_functions(const struct document *document, const ourcc_engine *engine) {
    const struct json *each = ourcc_need(document, engine->file.manifest, "functions", JSON_LIST)->first;
    for (size_t n = 0; n < engine->plan_count; ++n)
        if (engine->plans[n].needs) ourcc_fail(document->task, OURCC_UNSUPPORTED, "%.200s: %s", engine->file.path, engine->plans[n].needs);
    for (size_t n = 0; n < engine->function_count; ++n, each = each->next) {
        const struct plan *plan = &engine->plans[n];
        const struct json *inputs = each->first->next, *outputs = inputs->next, *states = outputs->next;
        if (!are_ports(inputs, document, plan->input_ports, plan->input_count) ||
            !are_ports(outputs, document, plan->output_ports, plan->output_count) || !are_states(states, document, plan))
            ourcc_damaged(document, "inputs of the plan of %s for %s are not those of the engine", plan->name, engine->part);
    }
}

/* --- constants, states, code --- */

static const struct constant *find_constant(const struct document *document, const ourcc_engine *engine, const char *key) {
    size_t number;
    if (ourcc_find(&engine->weights.names, key, &number)) return &engine->weights.constants[number];
    if (ourcc_find(&engine->shared.names, key, &number)) return &engine->shared.constants[number];
    ourcc_damaged(document, "engine holds no constant '%.200s' for %s", key, engine->part);
}

static void bind_constants(const struct document *document, const ourcc_engine *engine, struct plan *plan) {
    plan->constants = ourcc_take(document->task, document->memory, plan->buffer_count + 1, sizeof *plan->constants);
    for (size_t n = 0; n < plan->buffer_count; ++n) {
        const struct buffer *buffer = &plan->buffers[n];
        if (buffer->place != PLACE_CONSTANT) continue;
        const struct constant *constant = find_constant(document, engine, buffer->key);
        size_t expected = ourcc_static_bytes(&buffer->type);
        if (expected > constant->size)
            ourcc_damaged(document, "constant '%.200s' has %zu bytes, expected %zu", buffer->key, constant->size, expected);
        plan->constants[n] = constant;
    }
}

static bool are_alike(const struct type *one, const struct type *other) {
    bool alike = one->dtype == other->dtype && one->rank == other->rank;
    for (size_t n = 0; alike && n < one->rank; ++n)
        alike = one->shape[n]->kind == DIM_NUMBER && other->shape[n]->kind == DIM_NUMBER && one->shape[n]->number == other->shape[n]->number;
    return alike;
}

static void add_state(const struct document *document, ourcc_engine *engine, const struct declaration *state) {
    size_t number;
    if (ourcc_find(&engine->state_names, state->name, &number)) {
        const struct declaration *known = &engine->states[number];
        if (!are_alike(&known->type, &state->type) || strcmp(known->initial, state->initial) != 0)
            ourcc_damaged(document, "state '%.80s' is another one in another function", state->name);
        return;
    }
    number = engine->state_count++;
    engine->states[number] = *state;
    engine->state_ports[number] = ourcc_port_of(document, state->name, &state->type);
    (void)ourcc_name(document->task, document->memory, &engine->state_names, state->name, number);
    if (!*state->initial) return;
    const struct constant *constant = find_constant(document, engine, state->initial);
    if (!are_alike(&constant->type, &state->type) || constant->size < ourcc_static_bytes(&state->type))
        ourcc_damaged(document, "state '%.80s' begins as a constant of another type", state->name);
    engine->initials[number] = constant;
}

static void bind_states(const struct document *document, ourcc_engine *engine) {
    size_t count = 1;
    for (size_t n = 0; n < engine->plan_count; ++n) count += engine->plans[n].state_count;
    engine->states = ourcc_take(document->task, document->memory, count, sizeof *engine->states);
    engine->state_ports = ourcc_take(document->task, document->memory, count, sizeof *engine->state_ports);
    engine->initials = ourcc_take(document->task, document->memory, count, sizeof *engine->initials);
    for (size_t n = 0; n < engine->plan_count; ++n)
        for (size_t state = 0; state < engine->plans[n].state_count; ++state)
            add_state(document, engine, &engine->plans[n].states[state]);
}

static void load_code(const struct document *document, ourcc_engine *engine, const char digest[65]) {
    char path[600], name[80];
    size_t size;
    snprintf(path, sizeof path, "kernels/%.250s/engine.so", engine->part);
    snprintf(name, sizeof name, "%.70s.so", engine->part);
    const char *data = ourcc_read_member(document->task, &engine->file, path, &size);
    if (!data) ourcc_damaged(document, "engine holds no native code for its part %s", engine->part);
    ourcc_load_code(document->task, &engine->code, name, data, size, digest);
    for (size_t n = 0; n < engine->plan_count; ++n) {
        struct plan *plan = &engine->plans[n];
        if (!plan->step_count) continue;
        snprintf(path, sizeof path, "ourcc_segment_%zu_0", n);
        *(void **)&plan->run = ourcc_find_function(document->task, &engine->code, path);
        snprintf(path, sizeof path, "ourcc_arena_%zu", n);
        *(void **)&plan->arena = ourcc_find_function(document->task, &engine->code, path);
    }
}

/* Chooses the first part that runs here, among all or of one name, with its plans read. */
static bool choose(const struct document *document, ourcc_engine *engine, const char *wanted, char digest[65], struct line *why) {
    const struct json *parts = ourcc_need(document, engine->file.manifest, "parts", JSON_LIST);
    bool has_any = false, has_wanted = false;
    struct names names = {0};
    struct cpu cpu;
    ourcc_look(document->task, document->memory, &cpu);
    for (const struct json *each = parts->first; each; each = each->next) {
        if (!ourcc_name(document->task, document->memory, &names, read_part(document, each).name, 0))
            ourcc_damaged(document, "engine has two parts of one name");
        has_any = true;
    }
    if (!has_any) ourcc_damaged(document, "engine has no part");
    for (const struct json *each = parts->first; each; each = each->next) {
        struct part part = read_part(document, each);
        if (wanted && strcmp(wanted, part.name) != 0) continue;
        has_wanted = true;
        bool is_cpu = strcmp(part.family, "cpu") == 0, has_steps = is_cpu && read_plans(document, engine, part.name, digest);
        engine->part = part.name;
        if (runs_here(&part, &cpu, has_steps, why)) return true;
    }
    if (!has_wanted) ourcc_fail(document->task, OURCC_UNSUPPORTED, "engine holds no part %.80s", wanted);
    return false;
}

static void open_engine(struct task *task, ourcc_engine *engine, const char *path, const ourcc_options *options) {
    char digest[65];
    struct line why = {.length = 0};
    if (options->threads < 0) ourcc_fail(task, OURCC_USAGE, "got %d threads, expected 0 (all) or more", options->threads);
    engine->threads = options->threads ? options->threads : ourcc_cpu_count();
    ourcc_read_file(task, &engine->file, path, options);
    struct document document = {task, &engine->file.memory, engine->file.path, "manifest.json"};
    check_rest(&document, &engine->file);
    name_plans(&document, engine);
    if (!choose(&document, engine, options->part, digest, &why))
        ourcc_fail(task, OURCC_UNSUPPORTED, "%.200s: engine holds no target for this machine: %s", path, why.text);
    check_functions(&document, engine);
    ourcc_read_weights(task, &engine->file, engine->part, &engine->weights);
    ourcc_read_weights(task, &engine->file, "shared", &engine->shared);
    bool has_steps = false;
    for (size_t n = 0; n < engine->plan_count; ++n) {
        bind_constants(&document, engine, &engine->plans[n]);
        has_steps |= engine->plans[n].step_count > 0;
    }
    bind_states(&document, engine);
    if (has_steps) load_code(&document, engine, digest);
}

/* --- the public functions --- */

void ourcc_hold(ourcc_engine *engine) { atomic_fetch_add(&engine->holders, 1); }

void ourcc_close(ourcc_engine *engine) {
    if (!engine || atomic_fetch_sub(&engine->holders, 1) > 1) return;
    ourcc_free_code(&engine->code);
    ourcc_free_file(&engine->file);
    free(engine);
}

struct opening {
    const char *path;
    const ourcc_options *options;
    ourcc_engine **engine, *made;
};

static void open_it(struct task *task, void *call) {
    static const ourcc_options defaults;
    struct opening *opening = call;
    if (!opening->path) ourcc_fail(task, OURCC_USAGE, "got no path");
    if (!opening->engine) ourcc_fail(task, OURCC_USAGE, "got no place for the engine");
    ourcc_engine *made = opening->made = calloc(1, sizeof *made);
    if (!made) ourcc_fail(task, OURCC_MEMORY, "out of memory: %zu bytes are needed", sizeof *made);
    atomic_init(&made->holders, 1);
    made->file.handle = made->code.descriptor = -1;
    open_engine(task, made, opening->path, opening->options ? opening->options : &defaults);
}

ourcc_status ourcc_open(const char *path, const ourcc_options *options, ourcc_engine **engine, ourcc_error *error) {
    struct opening opening = {path, options, engine, NULL};
    ourcc_status status = ourcc_try(open_it, &opening, error);
    if (status != OURCC_OK) ourcc_close(opening.made);
    if (engine) *engine = status == OURCC_OK ? opening.made : NULL;
    return status;
}

const char *ourcc_part(const ourcc_engine *engine) { return engine->part; }

size_t ourcc_function_count(const ourcc_engine *engine) { return engine->function_count; }

const char *ourcc_function_name(const ourcc_engine *engine, size_t number) {
    return number < engine->function_count ? engine->plans[number].name : NULL;
}

const struct plan *ourcc_plan_of(const ourcc_engine *engine, const char *function) {
    size_t number = 0;
    if (function && !ourcc_find(&engine->function_names, function, &number)) return NULL;
    return &engine->plans[number];
}

const ourcc_port *ourcc_inputs(const ourcc_engine *engine, const char *function, size_t *count) {
    const struct plan *plan = ourcc_plan_of(engine, function);
    *count = plan ? plan->input_count : 0;
    return plan ? plan->input_ports : NULL;
}

const ourcc_port *ourcc_outputs(const ourcc_engine *engine, const char *function, size_t *count) {
    const struct plan *plan = ourcc_plan_of(engine, function);
    *count = plan ? plan->output_count : 0;
    return plan ? plan->output_ports : NULL;
}

const ourcc_symbol *ourcc_symbols(const ourcc_engine *engine, const char *function, size_t *count) {
    const struct plan *plan = ourcc_plan_of(engine, function);
    *count = plan ? plan->symbol_count : 0;
    return plan ? plan->symbol_ports : NULL;
}

const ourcc_port *ourcc_states(const ourcc_engine *engine, size_t *count) {
    *count = engine->state_count;
    return engine->state_ports;
}
