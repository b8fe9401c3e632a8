/* What follows from the shapes of a call: the values of symbols, sizes and places of all buffers; checked before anything runs. */
#include "internal.h"

#include <string.h>

void ourcc_make_binding(struct task *task, struct memory *memory, const struct plan *plan, struct binding *binding) {
    size_t sizes = plan->number_count;
    for (size_t n = 0; n < plan->input_count; ++n) sizes += plan->input_ports[n].rank;
    binding->values = ourcc_take(task, memory, plan->symbol_count + 1, sizeof *binding->values);
    binding->known = ourcc_take(task, memory, sizes + 1, sizeof *binding->known);
    binding->bytes = ourcc_take(task, memory, plan->buffer_count + 1, sizeof *binding->bytes);
    binding->slots = ourcc_take(task, memory, plan->slot_count + 1, sizeof *binding->slots);
    binding->ends = ourcc_take(task, memory, plan->slot_count + 1, sizeof *binding->ends);
    binding->shapes = ourcc_take(task, memory, plan->output_count + 1, sizeof *binding->shapes);
    for (size_t n = 0; n < plan->output_count; ++n)
        binding->shapes[n] = ourcc_take(task, memory, plan->output_ports[n].rank + 1, sizeof **binding->shapes);
    binding->is_bound = false;
}

/* Which inputs a size's symbols are from, for messages: "B is 3 from input 'x'". */
static void add_origins(const struct plan *plan, const struct dim *dim, const struct binding *binding, struct line *line) {
    size_t count = 0;
    for (size_t n = 0; n < plan->symbol_count; ++n) {
        if (!ourcc_mentions(dim, n)) continue;
        ourcc_add(line, "%s%s is %lld", count++ ? ", " : "", plan->symbol_ports[n].name, (long long)binding->values[n]);
        for (size_t solve = 0; solve < plan->solve_count; ++solve)
            if (plan->solves[solve].symbol == n) ourcc_add(line, " from input '%s'", plan->input_ports[plan->solves[solve].input].name);
        for (size_t number = 0; number < plan->number_count; ++number)
            if (plan->numbers[number].symbol == n) ourcc_add(line, " from input '%s'", plan->input_ports[plan->numbers[number].input].name);
    }
}

static void check_symbol(struct task *task, const struct plan *plan, size_t symbol, int64_t value, const struct line *where) {
    const struct symbol *held = &plan->symbols[symbol];
    const char *name = plan->symbol_ports[symbol].name;
    struct line range = {.length = 0};
    if (held->low != INT64_MIN) ourcc_add(&range, "%lld", (long long)held->low);
    ourcc_add(&range, "..");
    if (held->high != INT64_MAX) ourcc_add(&range, "%lld", (long long)held->high);
    if (value < held->low || value > held->high)
        ourcc_fail(task, OURCC_INPUT, "%s, so %s = %lld, expected %s in %s", where->text, name, (long long)value, name, range.text);
    if (value % held->divisor)
        ourcc_fail(task, OURCC_INPUT, "%s, so %s = %lld, expected a multiple of %lld", where->text, name, (long long)value,
                   (long long)held->divisor);
}

static void take_number(struct task *task, const struct plan *plan, const struct number *number, int64_t value, struct binding *binding) {
    struct line where = {.length = 0};
    ourcc_add(&where, "input '%s' is %lld", plan->input_ports[number->input].name, (long long)value);
    check_symbol(task, plan, number->symbol, value, &where);
    binding->values[number->symbol] = value;
}

/* size = factor * symbol + rest: the rest is the size for a symbol of 0. */
static void take_size(struct task *task, const struct plan *plan, const struct solve *solve, int64_t size, struct binding *binding) {
    const struct dim *expected = plan->buffers[plan->inputs[solve->input]].type.shape[solve->axis];
    struct line where = {.length = 0};
    ourcc_add(&where, "input '%s' has size %lld in dimension %zu", plan->input_ports[solve->input].name, (long long)size, solve->axis);
    binding->values[solve->symbol] = 0;
    int64_t left = size - ourcc_evaluate(task, expected, binding->values), value = left / solve->factor;
    if (left % solve->factor || (value < 0 && plan->symbols[solve->symbol].low >= 0))
        ourcc_fail(task, OURCC_INPUT, "%s, expected %.200s", where.text, expected->text);
    check_symbol(task, plan, solve->symbol, value, &where);
    binding->values[solve->symbol] = value;
}

static void check_sizes(struct task *task, const struct plan *plan, size_t input, const int64_t *shape, const struct binding *binding) {
    const struct type *type = &plan->buffers[plan->inputs[input]].type;
    for (size_t axis = 0; axis < type->rank; ++axis) {
        int64_t expected = ourcc_evaluate(task, type->shape[axis], binding->values);
        struct line why = {.length = 0};
        if (expected == shape[axis]) continue;
        add_origins(plan, type->shape[axis], binding, &why);
        ourcc_fail(task, OURCC_INPUT, "input '%s' has size %lld in dimension %zu, expected %lld%s%s%s", plan->input_ports[input].name,
                   (long long)shape[axis], axis, (long long)expected, why.length ? " (" : "", why.text, why.length ? ")" : "");
    }
}

static void check_broadcasts(struct task *task, const struct plan *plan, const struct binding *binding) {
    for (size_t n = 0; n < plan->broadcast_count; ++n) {
        int64_t left = ourcc_evaluate(task, plan->broadcasts[n][0], binding->values);
        int64_t right = ourcc_evaluate(task, plan->broadcasts[n][1], binding->values);
        if (left != right && left != 1 && right != 1)
            ourcc_fail(task, OURCC_INPUT, "sizes %lld and %lld do not broadcast, expected equal ones, or one of them 1 (%.100s and %.100s)",
                       (long long)left, (long long)right, plan->broadcasts[n][0]->text, plan->broadcasts[n][1]->text);
    }
}

/* The bytes of every buffer; no size is negative, none is more than memory can hold. */
static void measure(struct task *task, const struct plan *plan, struct binding *binding) {
    for (size_t n = 0; n < plan->buffer_count; ++n) {
        const struct buffer *buffer = &plan->buffers[n];
        int64_t shape[64];
        struct line sizes = {.length = 0};
        for (size_t axis = 0; axis < buffer->type.rank; ++axis) shape[axis] = ourcc_evaluate(task, buffer->type.shape[axis], binding->values);
        size_t bytes = ourcc_tensor_bytes(buffer->type.dtype, buffer->type.rank, shape);
        binding->bytes[n] = bytes;
        if (bytes != SIZE_MAX) continue;
        ourcc_add_shape(&sizes, buffer->type.rank, shape);
        for (size_t axis = 0; axis < buffer->type.rank; ++axis)
            if (shape[axis] < 0)
                ourcc_fail(task, OURCC_INPUT, "%.300s would have sizes [%s], expected none below 0", buffer->what, sizes.text);
        ourcc_fail(task, OURCC_MEMORY, "out of memory: %.300s would be %s[%s]", buffer->what, ourcc_dtype_name(buffer->type.dtype), sizes.text);
    }
    for (size_t n = 0; n < plan->output_count; ++n)
        for (size_t axis = 0; axis < plan->output_ports[n].rank; ++axis)
            binding->shapes[n][axis] = ourcc_evaluate(task, plan->buffers[plan->outputs[n]].type.shape[axis], binding->values);
}

/* Where the slots of the arena begin, as native code works it out as well. */
static void place_slots(struct task *task, const struct plan *plan, struct binding *binding) {
    uint64_t total = 0;
    for (size_t n = 0; n < plan->slot_count; ++n) {
        const struct slot *slot = &plan->slots[n];
        int64_t largest = 0;
        for (size_t size = 0; size < slot->count; ++size) {
            int64_t each = ourcc_evaluate(task, slot->sizes[size], binding->values);
            largest = each > largest ? each : largest;
        }
        uint64_t first = 0;
        for (size_t below = 0; below < slot->above_count; ++below)
            first = binding->ends[slot->above[below]] > first ? binding->ends[slot->above[below]] : first;
        uint64_t size = largest > OURCC_LARGEST ? (uint64_t)largest : ((uint64_t)largest + OURCC_ALIGNMENT - 1) / OURCC_ALIGNMENT * OURCC_ALIGNMENT;
        if (first + size > (uint64_t)OURCC_LARGEST)
            ourcc_fail(task, OURCC_MEMORY, "out of memory: values between kernels need %llu bytes", (unsigned long long)(first + size));
        binding->slots[n] = first;
        binding->ends[n] = first + size;
        total = binding->ends[n] > total ? binding->ends[n] : total;
    }
    binding->arena = total;
    if (plan->arena && plan->arena(binding->values) != (int64_t)total)
        ourcc_fail(task, OURCC_DAMAGED, "native code of function '%s' has an arena of another size than its plan", plan->name);
}

/* Keeps what the binding is worked out from; whether it is what it was. */
static bool is_known(const struct plan *plan, const ourcc_tensor *inputs, struct binding *binding) {
    bool is_same = binding->is_bound;
    int64_t *next = binding->known;
    for (size_t n = 0; n < plan->input_count; ++n)
        for (size_t axis = 0; axis < inputs[n].rank; ++axis, ++next) {
            is_same &= *next == inputs[n].shape[axis];
            *next = inputs[n].shape[axis];
        }
    for (size_t n = 0; n < plan->number_count; ++n, ++next) {
        int64_t value;
        memcpy(&value, inputs[plan->numbers[n].input].data, sizeof value);
        is_same &= *next == value;
        *next = value;
    }
    return is_same;
}

void ourcc_bind(struct task *task, const struct plan *plan, const ourcc_tensor *inputs, struct binding *binding) {
    if (is_known(plan, inputs, binding)) return;
    binding->is_bound = false;
    const int64_t *numbers = binding->known;
    for (size_t n = 0; n < plan->input_count; ++n) numbers += inputs[n].rank;
    for (size_t n = 0; n < plan->symbol_count; ++n)
        binding->values[n] = plan->symbols[n].low == plan->symbols[n].high ? plan->symbols[n].low : 0;
    for (size_t n = 0; n < plan->number_count; ++n) take_number(task, plan, &plan->numbers[n], numbers[n], binding);
    for (size_t n = 0; n < plan->solve_count; ++n) {
        const struct solve *solve = &plan->solves[n];
        take_size(task, plan, solve, inputs[solve->input].shape[solve->axis], binding);
    }
    for (size_t n = 0; n < plan->input_count; ++n) check_sizes(task, plan, n, inputs[n].shape, binding);
    check_broadcasts(task, plan, binding);
    measure(task, plan, binding);
    place_slots(task, plan, binding);
    binding->is_bound = true;
}
