/* The runtime of ourcc in C: opens an engine file, tells what it takes and gives, and runs it; no Python is needed.
 *
 * An engine is what an engine file holds: functions with named inputs and outputs, immutable once it is open. A session is
 * one caller's place to run them: it owns the memory of a call, and what functions keep between calls (their states).
 *
 * Threads. An engine serves any number of threads at once. A session serves one call at a time; a second one meanwhile is
 * OURCC_BUSY and does no harm. Sessions of one engine run side by side.
 *
 * Ownership. What the functions of this header give is owned by the engine or the session that they were asked of, and ends
 * with it. An engine lives until it and the last of its sessions are closed, in any order.
 *
 * Errors. What can fail gives a status and fills `error`, which may be null, with the status and a message in English. It
 * then changes nothing else: a pointer that it would have set is null. No function ends the process or raises a signal,
 * with one exception: weights of more than 1 MiB stay mapped from the file unless `copy_weights` is set, and a file that
 * is cut off in place while its engine is open ends the process, as for every program that maps files.
 *
 * Global state. The process has one pool of threads, which lives in the code of the engine that was loaded first; that
 * code and one file descriptor stay until the process ends. There is no other.
 *
 * Trust. An engine is code, which runs with the rights of its caller. It is refused unless it is byte by byte what was
 * written; who wrote it is not looked at: a signature is neither needed nor checked here.
 */
#ifndef OURCC_H
#define OURCC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OURCC_API __attribute__((visibility("default")))

typedef enum {
    OURCC_OK = 0,
    OURCC_USAGE = 1,       /* a call is wrong in itself: a null pointer, a name that the engine does not have */
    OURCC_SYSTEM = 2,      /* the system refused: no such file, no right to read it, an older libc than native code asks for */
    OURCC_DAMAGED = 3,     /* not an engine, or not byte by byte what was written, or its parts do not fit each other */
    OURCC_UNSUPPORTED = 4, /* an engine of another version, for other machines, or one that needs Python or a GPU */
    OURCC_INPUT = 5,       /* inputs do not fit: count, dtype, rank, size, or an index in them that is out of range */
    OURCC_MEMORY = 6,      /* the machine does not have the memory; the message has the size */
    OURCC_FAILED = 7,      /* a kernel failed, or a call failed before and left states of no use */
    OURCC_BUSY = 8         /* another thread is using the session */
} ourcc_status;

typedef struct {
    ourcc_status status;
    char message[1024]; /* ends with a zero byte; cut off where it is longer */
} ourcc_error;

/* Element types. Those narrower than a byte are packed, the first element in the lowest bits. A bool is a byte 0 or 1. */
typedef enum {
    OURCC_F64, OURCC_F32, OURCC_F16, OURCC_BF16,
    OURCC_F8E4M3, OURCC_F8E5M2, OURCC_F8E4M3FNUZ, OURCC_F8E5M2FNUZ, OURCC_F8E8M0, OURCC_F4E2M1,
    OURCC_I64, OURCC_I32, OURCC_I16, OURCC_I8, OURCC_I4, OURCC_I2,
    OURCC_U64, OURCC_U32, OURCC_U16, OURCC_U8, OURCC_U4, OURCC_U2,
    OURCC_BOOL, OURCC_C64, OURCC_C128
} ourcc_dtype;

/* A dense tensor in memory, the last axis fastest. */
typedef struct {
    void *data;           /* aligned to the size of an element; may be null where there are no elements */
    size_t bytes;         /* the size of the memory at `data`: at least what dtype and shape take */
    ourcc_dtype dtype;
    size_t rank;          /* 0 for a scalar */
    const int64_t *shape; /* `rank` sizes; may be null for rank 0 */
} ourcc_tensor;

/* What a function takes or gives, or what a state is. */
typedef struct {
    const char *name;
    ourcc_dtype dtype;
    size_t rank;
    const int64_t *shape;     /* `rank` sizes, -1 for one that a call decides */
    const char *const *sizes; /* the same as text: "384", "B", "2*S + 1" */
} ourcc_port;

/* A size that a call decides, by its name in the sizes of ports. */
typedef struct {
    const char *name;
    int64_t low, high; /* both included; INT64_MIN and INT64_MAX where there is no bound */
    int64_t divisor;   /* it is a multiple of this */
} ourcc_symbol;

typedef struct ourcc_engine ourcc_engine;
typedef struct ourcc_session ourcc_session;

/* How an engine is opened. All zeros, or a null pointer in its place, mean the defaults. */
typedef struct {
    int threads;      /* that a call may use, its own among them; 0: all that this process may */
    int copy_weights; /* not 0: weights are copied into memory, and the file is needed no more once the engine is open */
    const char *part; /* the instruction-set level to run; null: the best that this machine runs */
} ourcc_options;

/* Opens an engine file. Every byte is checked, so it takes the time to read the file once.
 * `*engine` is the engine, to be closed by ourcc_close.
 * OURCC_SYSTEM: the file cannot be read. OURCC_DAMAGED: it is no whole engine. OURCC_UNSUPPORTED: this machine or this
 * runtime does not run it; the message names what is missing, or the step that needs Python. OURCC_MEMORY. OURCC_USAGE. */
OURCC_API ourcc_status ourcc_open(const char *path, const ourcc_options *options, ourcc_engine **engine, ourcc_error *error);

/* Gives the engine back; null is allowed. Its sessions stay usable and keep it alive. */
OURCC_API void ourcc_close(ourcc_engine *engine);

/* The name of the part that runs, an instruction-set level. */
OURCC_API const char *ourcc_part(const ourcc_engine *engine);

/* The number of functions, and the name of each; the first one is the entry. Null for a number that is too large. */
OURCC_API size_t ourcc_function_count(const ourcc_engine *engine);
OURCC_API const char *ourcc_function_name(const ourcc_engine *engine, size_t number);

/* Inputs and outputs of a function in order, and the sizes that its calls decide. A null name means the entry.
 * `*count` is their number. Null, and 0, for a function that the engine does not have; else never null. */
OURCC_API const ourcc_port *ourcc_inputs(const ourcc_engine *engine, const char *function, size_t *count);
OURCC_API const ourcc_port *ourcc_outputs(const ourcc_engine *engine, const char *function, size_t *count);
OURCC_API const ourcc_symbol *ourcc_symbols(const ourcc_engine *engine, const char *function, size_t *count);

/* What a session keeps between calls; their sizes are all known. Never null. */
OURCC_API const ourcc_port *ourcc_states(const ourcc_engine *engine, size_t *count);

/* Makes a session, its states as they begin; to be closed by ourcc_session_close. OURCC_MEMORY, OURCC_USAGE. */
OURCC_API ourcc_status ourcc_session_open(ourcc_engine *engine, ourcc_session **session, ourcc_error *error);

/* Ends a session and frees its memory, outputs included; null is allowed. No call on it may be under way. */
OURCC_API void ourcc_session_close(ourcc_session *session);

/* Begins anew: every state as a new session has it, after a failure too. OURCC_MEMORY, OURCC_BUSY, OURCC_USAGE. */
OURCC_API ourcc_status ourcc_session_reset(ourcc_session *session, ourcc_error *error);

/* Copies a whole state to `data`, or from it; `bytes` is exactly the size of the state.
 * OURCC_USAGE: there is no such state, or it has another size. OURCC_FAILED, OURCC_BUSY. */
OURCC_API ourcc_status ourcc_state_read(ourcc_session *session, const char *state, void *data, size_t bytes, ourcc_error *error);
OURCC_API ourcc_status ourcc_state_write(ourcc_session *session, const char *state, const void *data, size_t bytes,
                                         ourcc_error *error);

/* Runs a function (null: the entry) on `input_count` inputs in order.
 * `outputs` has an entry for each output. Where its `data` is null the output lies in the session's memory, until the next
 * run of this function in this session, or until the session is closed. Else it is put where `data` points: `bytes` says how
 * many are there, and they may overlap no input and no other output. dtype, rank, shape and, in the session's memory, bytes
 * are filled in either way; the shape is the session's. Outputs that a run filled may be given to the next one as they are,
 * and may be its inputs as well: it then puts what it gives elsewhere.
 * Inputs are read and never written.
 * OURCC_INPUT: inputs, or the memory for outputs, do not fit; the message names which and what was expected.
 * OURCC_FAILED, OURCC_MEMORY, OURCC_BUSY, OURCC_USAGE. After an error memory of outputs holds anything. A call that fails
 * after it began to write states leaves them of no use: all calls that need states are then OURCC_FAILED, until
 * ourcc_session_reset. */
OURCC_API ourcc_status ourcc_run(ourcc_session *session, const char *function, const ourcc_tensor *inputs, size_t input_count,
                                 ourcc_tensor *outputs, size_t output_count, ourcc_error *error);

/* The bytes that a dense tensor takes; SIZE_MAX for a negative size, for more than memory can hold, for no such dtype. */
OURCC_API size_t ourcc_tensor_bytes(ourcc_dtype dtype, size_t rank, const int64_t *shape);

/* The names of values: "f32", "OURCC_INPUT". Never null. */
OURCC_API const char *ourcc_dtype_name(ourcc_dtype dtype);
OURCC_API const char *ourcc_status_name(ourcc_status status);

#ifdef __cplusplus
}
#endif
#endif
