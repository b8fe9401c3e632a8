"""AMX in C: its tiles, the instructions that multiply them, and portable models of these, which give the same bits."""

from __future__ import annotations

from .library import LibraryFunction

SIDE, ROW = 16, 64
"""Rows of a tile, and bytes of each."""
TILES = 8

_HELD = """
typedef union {
    uint8_t bytes[16][64];
    int8_t codes[16][64];
    uint16_t halves[16][32];
    int32_t words[16][16];
    float sums[16][16];
} ourcc_tile;
static _Thread_local ourcc_tile ourcc_tiles[8];
static ourcc_tile *ourcc_tile_at(int tile) { return &ourcc_tiles[tile]; }
"""
_COPY_ROW = """
static inline void ourcc_tile_row(uint8_t *to, const void *from, int64_t count, int fill) {
    if (count < 64) memset(to, fill, 64);
    if (count > 0) memcpy(to, from, count);
}
"""
_MASKED_ROW = """
static inline void ourcc_tile_row(uint8_t *to, const void *from, int64_t count, int fill) {
    __mmask64 some = count >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << count) - 1;
    _mm512_store_si512(to, _mm512_mask_loadu_epi8(_mm512_set1_epi8((char)fill), some, from));
}
"""
_SHAPES = """
static void ourcc_tile_shapes(int rows, int groups, int sums, int few) {
    uint8_t config[64] __attribute__((aligned(64))) = {1};
    for (int tile = 0; tile < 8; ++tile) {
        config[16 + 2 * tile] = tile >= sums && tile < few ? 4 * groups : 64;
        config[48 + tile] = tile < few ? rows : groups;
    }
    __asm__ volatile("ldtilecfg (%0)" :: "r"(config) : "memory");
}
"""
_LOAD = """
static inline void ourcc_tile_load(int tile, int rows, int count, const void *from, int64_t apart) {
    memset(ourcc_tile_at(tile), 0, sizeof(ourcc_tile));
    for (int row = 0; row < rows; ++row) memcpy(ourcc_tile_at(tile)->bytes[row], (const char *)from + row * apart, count);
}
"""
_STORE = """
static inline void ourcc_tile_store(int tile, int rows, void *to, int64_t apart) {
    for (int row = 0; row < rows; ++row) memcpy((char *)to + row * apart, ourcc_tile_at(tile)->bytes[row], 64);
}
"""
_BYTES = """
static inline void ourcc_NAME(int to, int left, int right) {
    ourcc_tile *sum = ourcc_tile_at(to), *x = ourcc_tile_at(left), *w = ourcc_tile_at(right);
    for (int row = 0; row < 16; ++row)
        for (int group = 0; group < 16; ++group)
            for (int column = 0; column < 16; ++column)
                for (int byte = 0; byte < 4; ++byte)
                    sum->words[row][column] += x->LEFT[row][4 * group + byte] * w->RIGHT[group][4 * column + byte];
}
"""
_FLUSHED = """
static float ourcc_flushed(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits &= bits & 0x7f800000 ? 0xffffffff : 0x80000000;
    memcpy(&x, &bits, 4);
    return x;
}
"""
_WIDE = """
static float ourcc_wide(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, 4);
    return ourcc_flushed(x);
}
"""
_HALVES = """
static void ourcc_NAME(int to, int left, int right) {
    ourcc_tile *sum = ourcc_tile_at(to), *x = ourcc_tile_at(left), *w = ourcc_tile_at(right);
    for (int row = 0; row < 16; ++row)
        for (int column = 0; column < 16; ++column) {
            float each[2] = {0, 0};  /* even places and odd ones, put together at the end */
            for (int place = 0; place < 32; ++place) {
                float *part = &each[place & 1], other = WIDE(w->halves[place / 2][2 * column + place % 2]);
                *part = ourcc_flushed(fmaf(WIDE(x->halves[row][place]), other, *part));
            }
            float *total = &sum->sums[row][column];
            *total = ourcc_flushed(ourcc_flushed(*total) + ourcc_flushed(each[0] + each[1]));
        }
}
"""


def _native(name: str, arguments: str, text: str, operands: str) -> str:
    return f'#define {name}({arguments}) __asm__ volatile("{text}" :: {operands} : "memory")'


def _place(pointer: str, apart: str) -> str:
    return f'"r"({pointer}), "r"((int64_t)({apart}))'


def functions() -> dict[str, LibraryFunction]:
    """Tiles and what multiplies them; the names of the instructions are those of the table."""
    load = _native("ourcc_tile_load", "tile, rows, count, from, apart", 'tileloadd (%0,%1,1), %%tmm" #tile "', _place("from", "apart"))
    store = _native("ourcc_tile_store", "tile, rows, to, apart", 'tilestored %%tmm" #tile ", (%0,%1,1)', _place("to", "apart"))
    zero = _native("ourcc_tile_zero", "tile", 'tilezero %%tmm" #tile "', "")
    found = {
        "ourcc_tile_at": LibraryFunction("", (), raw=_HELD),
        "ourcc_tile_row": LibraryFunction("", (), raw=_COPY_ROW, native={"avx512bw": _MASKED_ROW}),
        "ourcc_tile_shapes": LibraryFunction(
            "", (), raw="#define ourcc_tile_shapes(rows, groups, sums, few) ((void)0)", native={"amx_tile": _SHAPES}
        ),
        "ourcc_tile_load": LibraryFunction("", (), raw=_LOAD, native={"amx_tile": load}),
        "ourcc_tile_store": LibraryFunction("", (), raw=_STORE, native={"amx_tile": store}),
        "ourcc_tile_zero": LibraryFunction(
            "", (), raw="#define ourcc_tile_zero(tile) memset(ourcc_tile_at(tile), 0, 1024)", native={"amx_tile": zero}
        ),
    }
    found |= {"ourcc_flushed": LibraryFunction("", (), raw=_FLUSHED), "ourcc_wide": LibraryFunction("", (), raw=_WIDE)}
    for name, feature, model in (
        ("tdpbusd", "amx_int8", _BYTES.replace("LEFT", "bytes").replace("RIGHT", "codes")),
        ("tdpbssd", "amx_int8", _BYTES.replace("LEFT", "codes").replace("RIGHT", "codes")),
        ("tdpbsud", "amx_int8", _BYTES.replace("LEFT", "codes").replace("RIGHT", "bytes")),
        ("tdpbf16ps", "amx_bf16", _HALVES.replace("WIDE", "ourcc_wide")),
        # Numbers of f16 that are smaller than normal ones are multiplied as they are.
        ("tdpfp16ps", "amx_fp16", _HALVES.replace("WIDE", "ourcc_f16")),
    ):
        text = _native(f"ourcc_{name}", "to, left, right", f'{name} %%tmm" #right ", %%tmm" #left ", %%tmm" #to "', "")
        found[f"ourcc_{name}"] = LibraryFunction("", (), raw=model.replace("NAME", name), native={feature: text})
    return found
