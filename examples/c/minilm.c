/* Embeds sentences with the engine of a sentence encoder, and prints which of them are nearest to each other; no Python runs.
 *
 * The engine is the demo's (`make demo` writes build/demo/minilm.ourcc): input_ids and attention_mask, i64[B, S], to one unit
 * vector for each sentence, f32[B, 384]. `ourcc runtime -o FOLDER` prints the line that compiles it.
 */
#include "ourcc.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define LONGEST 12

/* Sentences, and their tokens as the encoder's tokenizer numbers them; behind the last token there are zeros. */
static const struct {
    const char *text;
    int64_t tokens[LONGEST];
} sentences[] = {
    {"A man is playing a guitar.", {101, 1037, 2158, 2003, 2652, 1037, 2858, 1012, 102}},
    {"Somebody plays an instrument with strings.", {101, 8307, 3248, 2019, 6602, 2007, 7817, 1012, 102}},
    {"The stock market fell sharply today.", {101, 1996, 4518, 3006, 3062, 9249, 2651, 1012, 102}},
    {"Shares lost much of their value this afternoon.", {101, 6661, 2439, 2172, 1997, 2037, 3643, 2023, 5027, 1012, 102}},
    {"A chef is cooking pasta in a small kitchen.", {101, 1037, 10026, 2003, 8434, 24857, 1999, 1037, 2235, 3829, 1012, 102}},
    {"Someone prepares noodles at home.", {101, 2619, 20776, 27130, 2012, 2188, 1012, 102}},
};

#define COUNT ((int64_t)(sizeof sentences / sizeof *sentences))

static int64_t ids[COUNT][LONGEST], mask[COUNT][LONGEST];

static double product(const float *left, const float *right, int64_t width) {
    double sum = 0;
    for (int64_t n = 0; n < width; ++n) sum += (double)left[n] * right[n];
    return sum;
}

static void print_nearest(const float *vectors, int64_t width) {
    for (int64_t n = 0; n < COUNT; ++n) {
        const float *own = vectors + n * width;
        int64_t nearest = n ? 0 : 1;
        for (int64_t other = 0; other < COUNT; ++other)
            if (other != n && product(own, vectors + other * width, width) > product(own, vectors + nearest * width, width)) nearest = other;
        printf("%.6f  %.6f  %s  |  %s\n", sqrt(product(own, own, width)), product(own, vectors + nearest * width, width),
               sentences[n].text, sentences[nearest].text);
    }
}

int main(int count, char **words) {
    ourcc_error error;
    ourcc_engine *engine = NULL;
    ourcc_session *session = NULL;
    const int64_t shape[2] = {COUNT, LONGEST};
    if (count != 2) {
        fprintf(stderr, "usage: %s ENGINE\n", words[0]);
        return 2;
    }
    for (int64_t n = 0; n < COUNT; ++n)
        for (int64_t place = 0; place < LONGEST; ++place) {
            ids[n][place] = sentences[n].tokens[place];
            mask[n][place] = ids[n][place] != 0;
        }
    const ourcc_tensor inputs[2] = {
        {ids, sizeof ids, OURCC_I64, 2, shape},
        {mask, sizeof mask, OURCC_I64, 2, shape},
    };
    ourcc_tensor output = {0}; /* no memory of ours: the session has it, until its next run */
    ourcc_status status = ourcc_open(words[1], NULL, &engine, &error);
    if (status == OURCC_OK) status = ourcc_session_open(engine, &session, &error);
    if (status == OURCC_OK) status = ourcc_run(session, NULL, inputs, 2, &output, 1, &error);
    if (status == OURCC_OK && (output.dtype != OURCC_F32 || output.rank != 2)) {
        fprintf(stderr, "%s gives no vectors\n", words[1]);
        status = OURCC_UNSUPPORTED;
    } else if (status == OURCC_OK)
        print_nearest(output.data, output.shape[1]);
    else
        fprintf(stderr, "%s: %s\n", ourcc_status_name(status), error.message);
    ourcc_session_close(session);
    ourcc_close(engine);
    return status == OURCC_OK ? 0 : 1;
}
