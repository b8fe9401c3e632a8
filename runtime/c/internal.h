/* What the files of the runtime share: one way out for errors, memory, and what is known of an engine once it is read.
 *
 * A public function does its work by ourcc_try. Whatever fails below that calls ourcc_fail, which fills the error and jumps
 * back to ourcc_try. All memory belongs to an engine or a session, so nothing between needs to be undone.
 */
#ifndef OURCC_INTERNAL_H
#define OURCC_INTERNAL_H

#define _GNU_SOURCE
#include "ourcc.h"

#include <setjmp.h>
#include <stdatomic.h>
#include <stdbool.h>

#pragma GCC visibility push(hidden)

#define OURCC_ALIGNMENT 64
#define OURCC_LARGEST (INT64_C(1) << 48)

/* --- error.c: one way out --- */

struct task {
    jmp_buf end;
    ourcc_error *error;
    atomic_bool *taken; /* of a session: given back at the end */
};

/* Does the work; the status is that of the failure which ended it, else OURCC_OK. `error` may be null. */
ourcc_status ourcc_try(void (*work)(struct task *task, void *call), void *call, ourcc_error *error);
_Noreturn void ourcc_fail(struct task *task, ourcc_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A line of text that grows as far as its room goes, for messages. */
struct line {
    char text[512];
    size_t length;
};
void ourcc_add(struct line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* --- memory.c: memory that is freed together, aligned blocks, and names --- */

struct chunk;
struct memory {
    struct chunk *chunks;
    char *next;
    size_t left;
};
/* `count` elements of `size` bytes, all zeros, aligned to 16; freed with the rest. */
void *ourcc_take(struct task *task, struct memory *memory, size_t count, size_t size);
char *ourcc_take_text(struct task *task, struct memory *memory, const char *text, size_t length);
void ourcc_free_memory(struct memory *memory);

/* A piece of memory that starts at a multiple of OURCC_ALIGNMENT. */
struct block {
    void *base;
    char *data;
    size_t size;
};
/* At least `size` bytes; what was there before is kept where it is large enough, else lost. New memory is zeros. */
void ourcc_reserve(struct task *task, struct block *block, uint64_t size, const char *what);
void ourcc_free_block(struct block *block);

/* Names with a number each. */
struct names {
    struct name *slots;
    size_t room, count;
};
/* False if the name is there already. */
bool ourcc_name(struct task *task, struct memory *memory, struct names *names, const char *name, size_t number);
bool ourcc_find(const struct names *names, const char *name, size_t *number);

/* --- digest.c: SHA-256, CRC-32 and the digests of members --- */

struct digest {
    uint8_t bytes[32];
};
/* The checksum of these bytes behind others whose checksum is `before`; that of none is 0. */
uint32_t ourcc_crc32(uint32_t before, const void *data, size_t size);
struct digest ourcc_sha256(const void *data, size_t size);
void ourcc_hexadecimal(const struct digest *digest, char text[65]);
/* The digest of a member: that of the digests of its pieces of 4 MiB. */
struct digest ourcc_member_digest(struct task *task, const void *data, size_t size);
/* Bytes of a file, and where it is mapped as a whole; null if it is not. */
struct file_part {
    int handle;
    char *map;
    uint64_t first, size;
};
/* The same of bytes of a file, which are also put `into` memory if that is not null. */
struct digest ourcc_file_digest(struct task *task, const struct file_part *part, char *into, int threads);
/* Fills memory from a file; false where the file ends before or cannot be read. */
bool ourcc_read_at(int handle, uint64_t first, void *into, size_t size);

/* --- json.c: JSON as a tree --- */

enum json_kind { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_INTEGER, JSON_REAL, JSON_TEXT, JSON_LIST, JSON_OBJECT };
struct json {
    enum json_kind kind;
    const char *key;  /* in an object */
    const char *text; /* of a text: UTF-8, with no zero byte but the last */
    int64_t integer;
    size_t count; /* of the parts of a list or an object */
    struct json *first, *next;
};

/* What is read, for messages: the engine's path, and the member of it. */
struct document {
    struct task *task;
    struct memory *memory;
    const char *path, *member;
};
_Noreturn void ourcc_damaged(const struct document *document, const char *format, ...) __attribute__((format(printf, 2, 3)));
const struct json *ourcc_read_json(const struct document *document, const char *text, size_t size);
/* The part of an object by its key; null where it is absent. */
const struct json *ourcc_field(const struct json *object, const char *key);
/* The same, which must be of the kind where it is there. */
const struct json *ourcc_part_of(const struct document *document, const struct json *object, const char *key, enum json_kind kind);
/* The same, which must be there. */
const struct json *ourcc_need(const struct document *document, const struct json *object, const char *key, enum json_kind kind);
/* The value itself, which must be of the kind. */
const struct json *ourcc_expect(const struct document *document, const struct json *value, enum json_kind kind, const char *what);

/* --- dim.c: sizes as expressions over symbols --- */

enum dim_kind { DIM_NUMBER, DIM_SYMBOL, DIM_SUM, DIM_PRODUCT, DIM_QUOTIENT, DIM_REMAINDER, DIM_LARGER, DIM_SMALLER };
struct dim {
    enum dim_kind kind;
    int64_t number; /* of a number, or of a symbol in the plan's order */
    const struct dim *left, *right;
    const char *text;
};
/* A size as plans write it, an integer or text; a symbol that is not among the names is damage. */
const struct dim *ourcc_read_dim(const struct document *document, const struct names *symbols, const struct json *json);
/* OURCC_INPUT for a division by 0, OURCC_MEMORY beyond 2^62. */
int64_t ourcc_evaluate(struct task *task, const struct dim *dim, const int64_t *values);
bool ourcc_mentions(const struct dim *dim, size_t symbol);
/* The factor of a symbol, which must stand in one term of the sum, alone or times a positive number; else 0. */
int64_t ourcc_factor(const struct dim *dim, size_t symbol);

/* --- type.c: element types and types --- */

struct type {
    ourcc_dtype dtype;
    size_t rank;
    const struct dim **shape;
};
bool ourcc_find_dtype(const char *name, ourcc_dtype *dtype);
unsigned ourcc_bits(ourcc_dtype dtype);
/* Whether `dtype` is a value of the enum at all. */
bool ourcc_is_dtype(ourcc_dtype dtype);
struct type ourcc_read_type(const struct document *document, const struct names *symbols, const char *dtype, const struct json *shape);
/* The bytes of a type with known sizes, as ourcc_tensor_bytes gives them. */
size_t ourcc_static_bytes(const struct type *type);
void ourcc_add_type(struct line *line, const struct type *type);
void ourcc_add_shape(struct line *line, size_t rank, const int64_t *shape);
ourcc_port ourcc_port_of(const struct document *document, const char *name, const struct type *type);

/* --- archive.c: the bytes around members --- */

struct member {
    const char *name;
    uint64_t size;
    uint32_t crc;
    char digest[65];
    uint64_t head; /* bytes of the header of a weights member */
    char head_digest[65];
    uint64_t header, data; /* where its local header and its bytes lie */
};
#define OURCC_PAGE 4096
/* Gives every member its place, in order. */
void ourcc_place(struct member *members, size_t count);
/* Whether the file holds these bytes around its members and no others: local headers, directory, end, comment. */
void ourcc_check_archive(const struct document *document, int handle, uint64_t size, const struct member *members, size_t count,
                         const char *comment);
void ourcc_check_header(const struct document *document, int handle, const struct member *member);

/* --- file.c: an engine file whose bytes are checked --- */

struct file {
    struct memory memory;
    const char *path;
    int handle;
    uint64_t size;
    struct member *members; /* the manifest first */
    size_t count;
    struct names names;
    const struct json *manifest;
    char *map; /* the whole file, where weights stay in it */
    struct block *copies; /* of weights, by member */
    const char **heads;   /* the headers of weights, by member */
};
void ourcc_read_file(struct task *task, struct file *file, const char *path, const ourcc_options *options);
void ourcc_free_file(struct file *file);
/* A private copy of a member, checked again; null if there is none of that name. */
const char *ourcc_read_member(struct task *task, struct file *file, const char *name, size_t *size);

/* --- weights.c: constants by name --- */

struct constant {
    const char *name;
    struct type type;
    const char *data;
    size_t size;
};
struct weights {
    struct names names;
    struct constant *constants;
    size_t count;
};
/* The constants of weights/NAME.safetensors; none if there is no such member. */
void ourcc_read_weights(struct task *task, struct file *file, const char *name, struct weights *weights);

/* The name of a constant's bytes: its value, the layout that it has in memory, and what is made of it, as `Constant.key` writes them. */
const char *ourcc_constant_key(const struct document *document, const struct json *storage);

/* --- plan.c: the plan of a function --- */

enum place { PLACE_INPUT, PLACE_OUTPUT, PLACE_CONSTANT, PLACE_ARENA, PLACE_DYNAMIC, PLACE_STATE, PLACE_ALIAS };
struct buffer {
    const char *name;
    const char *what; /* for messages: whose op writes it, else what kind of memory it is */
    struct type type;
    enum place place;
    const char *key;          /* of a constant, or the name of a state */
    size_t root;              /* of an alias: a buffer; of one in the arena: a slot */
    const struct dim *offset; /* of an alias, in bytes */
};
struct slot {
    const struct dim **sizes;
    size_t *above; /* slots before it, from the last of whose ends on it lies */
    size_t count, above_count;
};
struct symbol {
    int64_t low, high, divisor;
    bool is_used, is_settled;
};
struct number {
    size_t symbol, input;
};
struct solve {
    size_t symbol, input, axis;
    int64_t factor;
};
struct declaration {
    const char *name, *initial; /* an empty initial means zeros */
    struct type type;
};
enum step_kind { STEP_LAUNCH, STEP_COPY, STEP_ZERO, STEP_CHECK, STEP_CHECK_PLACE };
struct step {
    enum step_kind kind;
    size_t source; /* of a copy */
    size_t *writes;
    size_t write_count;
    size_t worst;            /* of a check of indices */
    const struct dim *place; /* of a check of a place */
    const struct dim *size;  /* null: integers are divided by 0 */
    bool negative;
    const char *subject, *origin; /* what the indices are, and whose op reads by them (or null) */
};
struct plan {
    const char *name;
    struct names symbol_names, buffer_names, slot_names;
    struct symbol *symbols;
    ourcc_symbol *symbol_ports;
    size_t symbol_count;
    const struct dim *(*broadcasts)[2];
    size_t broadcast_count;
    struct buffer *buffers;
    size_t buffer_count;
    struct slot *slots;
    size_t slot_count;
    size_t *inputs, *outputs; /* buffers */
    ourcc_port *input_ports, *output_ports;
    size_t input_count, output_count;
    bool *copied; /* of each output: its buffer is not the caller's own memory */
    struct number *numbers;
    size_t number_count;
    struct solve *solves;
    size_t solve_count;
    struct declaration *states;
    size_t state_count;
    bool has_states;
    struct step *steps;
    size_t step_count;
    const char *needs; /* why this runtime cannot run it; null if it can */
    /* Native code; null where the plan has no steps. */
    int64_t (*arena)(const int64_t *symbols);
    int32_t (*run)(void *const *buffers, const int64_t *symbols, char *arena, int32_t threads);
    const struct constant **constants; /* by buffer */
};
void ourcc_read_plan(struct task *task, struct file *file, const char *member, const char *function, const char *text, size_t size,
                     struct plan *plan);

/* --- machine.c: what this machine is --- */

struct cpu {
    char machine[65];
    char *flags; /* between spaces, with one at either end */
};
void ourcc_look(struct task *task, struct memory *memory, struct cpu *cpu);
bool ourcc_has_flag(const struct cpu *cpu, const char *flag);
/* Whether the system lets this process use the tiles of AMX. */
bool ourcc_may_use_tiles(void);
int ourcc_cpu_count(void);

/* --- code.c: native code --- */

struct code {
    void *library;
    int descriptor;
    bool is_kept; /* the process's pool lives in it */
};
void ourcc_load_code(struct task *task, struct code *code, const char *name, const char *data, size_t size, const char plans[65]);
/* Whether a step of a plan runs a kernel, or a routine that native code has as one (IN_C of ir/plan/steps.py). */
bool ourcc_is_launched(const struct document *document, const char *kind, const struct json *step);
void *ourcc_find_function(struct task *task, const struct code *code, const char *name);
void ourcc_free_code(struct code *code);

/* --- engine.c: an open engine --- */

struct ourcc_engine {
    atomic_size_t holders;
    struct file file;
    const char *part;
    struct plan *plans; /* the functions that callers see, then those that only functions call */
    size_t function_count, plan_count;
    struct names function_names;
    struct weights weights, shared;
    struct declaration *states;
    ourcc_port *state_ports;
    const struct constant **initials; /* by state; null for zeros */
    size_t state_count;
    struct names state_names;
    struct code code;
    int threads;
};
void ourcc_hold(ourcc_engine *engine);
/* The plan of a function, null for the entry; null if there is none. */
const struct plan *ourcc_plan_of(const ourcc_engine *engine, const char *function);

/* --- bind.c: what follows from the shapes of a call --- */

struct binding {
    bool is_bound;
    int64_t *values; /* of symbols */
    int64_t *known;  /* what they were worked out from: all sizes of the inputs, then the numbers */
    uint64_t *bytes; /* of buffers */
    int64_t **shapes; /* of outputs */
    uint64_t *slots, *ends; /* where they begin and end in the arena */
    uint64_t arena;
};
void ourcc_make_binding(struct task *task, struct memory *memory, const struct plan *plan, struct binding *binding);
/* OURCC_INPUT where the inputs do not fit, OURCC_MEMORY where sizes that follow from them do not. */
void ourcc_bind(struct task *task, const struct plan *plan, const ourcc_tensor *inputs, struct binding *binding);

#pragma GCC visibility pop
#endif
