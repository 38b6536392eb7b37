// Products of quantized weights by quantized columns on x86, for prompts, batches and lone columns;
// not for experts, nor where LANES does not divide the rows.
//
// The lanes of a vector are rows of A (the weights), so that dot products need no sum over lanes,
// and one instruction scales all rows. A row's numbers are decoded once for all columns of B. The
// order of the sums depends on k alone: a column's result is the same in every batch.
//
// Included by llama.cpp's sgemm.cpp, whose types it uses. Everything is in an anonymous namespace,
// as a portable build compiles it once for each generation of CPUs.
#pragma once

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "lanes.h"

#include <algorithm>
#include <vector>

namespace {

constexpr int CHUNK = 1024;   // quants of a row that are decoded at once: 24 KiB at most
constexpr int64_t BAND = 64;  // columns of B whose scales are unpacked at once

// LANES rows of a group, the 4 * WORDS quants with one scale: number = scale * quant + minimum
template <int WORDS>
struct RowGroup {
    ivec quants[WORDS];  // word i: unsigned bytes 4 * i to 4 * i + 3
    fvec scale;
    fvec minimum;
};
using RowGroup32 = RowGroup<8>;
using RowGroup16 = RowGroup<4>;

// a group of a column: number = scale * quant
struct ColumnGroup {
    float scale;
    union {
        float sum;      // of the numbers, where A has minima
        int32_t start;  // of the sum of products, where A's decoded quants lie above the true ones
    };
};

// words[i] gets the bytes 4 * i to 4 * i + 3 of each row
inline void transpose(const void *rows, int64_t stride, ivec words[4]) {
    const char *p = static_cast<const char *>(rows);
    ivec a = chunks(p, stride), b = chunks(p + stride, stride);
    ivec c = chunks(p + 2 * stride, stride), d = chunks(p + 3 * stride, stride);
    ivec low_ab = low32(a, b), high_ab = high32(a, b), low_cd = low32(c, d), high_cd = high32(c, d);
    words[0] = low64(low_ab, low_cd);
    words[1] = high64(low_ab, low_cd);
    words[2] = low64(high_ab, high_cd);
    words[3] = high64(high_ab, high_cd);
}

inline ivec low_nibbles(ivec a) { return bits_and(a, fill(0x0f0f0f0f)); }
inline ivec high_nibbles(ivec a) { return low_nibbles(shift_right(a, 4)); }

// 16 bytes of each row: the first 16 quants are the low nibbles, the others the high ones
inline void nibbles(const void *rows, int64_t stride, ivec quants[8]) {
    transpose(rows, stride, quants);
    for (int i = 0; i < 4; ++i) {
        quants[i + 4] = high_nibbles(quants[i]);
        quants[i] = low_nibbles(quants[i]);
    }
}

template <int WORD = 0>
inline void add_fifth_bits(ivec bits, ivec quants[8]) {
    quants[WORD] = bits_or(quants[WORD], fifth_bits<WORD>(bits));
    if constexpr (WORD < 7)
        add_fifth_bits<WORD + 1>(bits, quants);
}

// The types of weights: what their groups are, how many a block has, what the decoded quants lie
// above the true ones (0: the groups have minima), and how LANES rows of a block, `stride` bytes
// from one another, are decoded.
template <typename A>
struct Weights;

template <>
struct Weights<block_q8_0> {
    using Group = RowGroup32;
    static constexpr int groups = 1, above = 128;
    static void decode(const block_q8_0 *a, int64_t stride, RowGroup32 *to) {
        ivec head[4];
        transpose(a, stride, head);
        to->scale = halves(head[0]);
        transpose(a->qs, stride, to->quants);
        transpose(a->qs + 16, stride, to->quants + 4);
        for (ivec &word : to->quants)
            word = bits_xor(word, fill(int32_t(0x80808080)));
    }
};

template <>
struct Weights<block_q4_0> {
    using Group = RowGroup32;
    static constexpr int groups = 1, above = 8;
    static void decode(const block_q4_0 *a, int64_t stride, RowGroup32 *to) {
        ivec head[4];
        transpose(a, stride, head);
        to->scale = halves(head[0]);
        nibbles(a->qs, stride, to->quants);
    }
};

template <>
struct Weights<block_q4_1> {
    using Group = RowGroup32;
    static constexpr int groups = 1, above = 0;
    static void decode(const block_q4_1 *a, int64_t stride, RowGroup32 *to) {
        ivec head[4];
        transpose(a, stride, head);
        to->scale = halves(head[0]);
        to->minimum = halves(shift_right(head[0], 16));
        nibbles(a->qs, stride, to->quants);
    }
};

template <>
struct Weights<block_q5_0> {
    using Group = RowGroup32;
    static constexpr int groups = 1, above = 16;
    static void decode(const block_q5_0 *a, int64_t stride, RowGroup32 *to) {
        ivec head[4];
        transpose(a, stride, head);
        to->scale = halves(head[0]);
        nibbles(a->qs, stride, to->quants);
        add_fifth_bits(bits_or(shift_right(head[0], 16), shift_left(head[1], 16)), to->quants);
    }
};

template <>
struct Weights<block_q5_1> {
    using Group = RowGroup32;
    static constexpr int groups = 1, above = 0;
    static void decode(const block_q5_1 *a, int64_t stride, RowGroup32 *to) {
        ivec head[4];
        transpose(a, stride, head);
        to->scale = halves(head[0]);
        to->minimum = halves(shift_right(head[0], 16));
        nibbles(a->qs, stride, to->quants);
        add_fifth_bits(head[1], to->quants);
    }
};

// The scales and minima of Q4_K and Q5_K: six bits each, by two halves' scales. `head` holds the
// block's first 16 bytes: d and dmin, then 12 bytes as get_scale_min_k4 has them.
inline void scales_k4(const ivec head[4], RowGroup32 to[8]) {
    const fvec d = halves(head[0]), dmin = multiply(halves(shift_right(head[0], 16)), fill(-1.0f));
    const ivec six = fill(0x3f3f3f3f), top = fill(0x30303030);
    const ivec scales[2] = {bits_and(head[1], six),
                            bits_or(low_nibbles(head[3]), bits_and(shift_right(head[1], 2), top))};
    const ivec minima[2] = {bits_and(head[2], six),
                            bits_or(high_nibbles(head[3]), bits_and(shift_right(head[2], 2), top))};
    for (int i = 0; i < 8; ++i) {
        const int bits = 8 * (i % 4);
        to[i].scale = multiply(d, to_floats(bits_and(shift_right(scales[i / 4], bits), fill(255))));
        to[i].minimum =
            multiply(dmin, to_floats(bits_and(shift_right(minima[i / 4], bits), fill(255))));
    }
}

// 128 bytes of each row: of each 32 the low nibbles are a group, the high ones the next
inline void nibbles_k(const uint8_t *rows, int64_t stride, RowGroup32 to[8]) {
    for (int i = 0; i < 8; i += 2) {
        transpose(rows + 16 * i, stride, to[i].quants);
        transpose(rows + 16 * i + 16, stride, to[i].quants + 4);
        for (int word = 0; word < 8; ++word) {
            to[i + 1].quants[word] = high_nibbles(to[i].quants[word]);
            to[i].quants[word] = low_nibbles(to[i].quants[word]);
        }
    }
}

template <>
struct Weights<block_q4_K> {
    using Group = RowGroup32;
    static constexpr int groups = 8, above = 0;
    static void decode(const block_q4_K *a, int64_t stride, RowGroup32 *to) {
        ivec head[4];
        transpose(a, stride, head);
        scales_k4(head, to);
        nibbles_k(a->qs, stride, to);
    }
};

template <>
struct Weights<block_q5_K> {
    using Group = RowGroup32;
    static constexpr int groups = 8, above = 0;
    static void decode(const block_q5_K *a, int64_t stride, RowGroup32 *to) {
        ivec head[4], high[8];
        transpose(a, stride, head);
        scales_k4(head, to);
        nibbles_k(a->qs, stride, to);
        transpose(a->qh, stride, high);
        transpose(a->qh + 16, stride, high + 4);
        for (int i = 0; i < 8; ++i) {
            for (int word = 0; word < 8; ++word) {
                const ivec bit = bits_and(shift_right(high[word], i), fill(0x01010101));
                to[i].quants[word] = bits_or(to[i].quants[word], shift_left(bit, 4));
            }
        }
    }
};

template <>
struct Weights<block_q6_K> {
    using Group = RowGroup16;
    static constexpr int groups = 16, above = 32;
    static void decode(const block_q6_K *a, int64_t stride, RowGroup16 *to) {
        ivec scales[4], tail[4];
        transpose(a->scales, stride, scales);
        transpose(reinterpret_cast<const char *>(a + 1) - 16, stride, tail);
        const fvec d = halves(shift_right(tail[3], 16));
        for (int i = 0; i < 16; ++i)
            to[i].scale = multiply(
                d, to_floats(shift_right_signed(shift_left(scales[i / 4], 24 - 8 * (i % 4)), 24)));
        for (int i = 0; i < 4; ++i) {
            // 16 bytes with the upper bits of four groups, which are two apart
            RowGroup16 *of = to + i / 2 * 8 + i % 2;
            const uint8_t *ql = a->ql + i / 2 * 64 + i % 2 * 16;
            ivec low[4], low_2[4], high[4];
            transpose(ql, stride, low);
            transpose(ql + 32, stride, low_2);
            transpose(a->qh + 16 * i, stride, high);
            for (int word = 0; word < 4; ++word) {
                const ivec top = fill(0x30303030);
                of[0].quants[word] =
                    bits_or(low_nibbles(low[word]), bits_and(shift_left(high[word], 4), top));
                of[2].quants[word] =
                    bits_or(low_nibbles(low_2[word]), bits_and(shift_left(high[word], 2), top));
                of[4].quants[word] = bits_or(high_nibbles(low[word]), bits_and(high[word], top));
                of[6].quants[word] =
                    bits_or(high_nibbles(low_2[word]), bits_and(shift_right(high[word], 2), top));
            }
        }
    }
};

inline void unpack(const block_q8_0 &b, int above, int, ColumnGroup *to) {
    int32_t sum = 0;
    for (int8_t quant : b.qs)
        sum += quant;
    to->scale = GGML_CPU_FP16_TO_FP32(b.d);
    to->start = -above * sum;
}

inline void unpack(const block_q8_1 &b, int, int, ColumnGroup *to) {
    to->scale = GGML_CPU_FP16_TO_FP32(b.d);
    to->sum = GGML_CPU_FP16_TO_FP32(b.s);
}

inline void unpack(const block_q8_K &b, int above, int groups, ColumnGroup *to) {
    for (int i = 0; i < groups; ++i) {
        to[i].scale = b.d;
        if (above)
            to[i].start = -above * b.bsums[i];
        else
            to[i].sum = b.d * (b.bsums[2 * i] + b.bsums[2 * i + 1]);
    }
}

// A thread's own, kept: a band's, which makes 16 or 32 bytes for each number of a column.
inline std::vector<ColumnGroup> &column_groups() {
    static thread_local std::vector<ColumnGroup> groups;
    return groups;
}

// m rows of A by n columns of B, each of k blocks; strides in blocks, C's in floats.
template <typename A, typename B>
class QuantizedProduct {
  public:
    QuantizedProduct(int64_t k, const A *a, int64_t lda, const B *b, int64_t ldb, float *c,
                     int64_t ldc)
        : k(k), a(a), lda(lda), b(b), ldb(ldb), c(c), ldc(ldc) {}

    // The share of thread ith of nth. LANES divides m.
    void compute(int64_t m, int64_t n, int ith, int nth) {
        std::vector<ColumnGroup> &unpacked = column_groups();
        const int64_t tiles = m / LANES, jobs = tiles * ((n + BAND - 1) / BAND);
        int64_t band = -1;
        for (int64_t job = jobs * ith / nth; job < jobs * (ith + 1) / nth; ++job) {
            const int64_t first = job / tiles * BAND, columns = std::min(BAND, n - first);
            if (band != first) {
                band = first;
                unpacked.resize(columns * k * GROUPS);
                for (int64_t j = 0; j < columns; ++j)
                    for (int64_t l = 0; l < k; ++l)
                        unpack(b[ldb * (first + j) + l], Weights<A>::above, GROUPS,
                               &unpacked[(k * j + l) * GROUPS]);
            }
            tile(job % tiles * LANES, first, columns, unpacked.data());
        }
    }

  private:
    using Group = typename Weights<A>::Group;
    static constexpr int GROUPS = Weights<A>::groups;
    static constexpr int WORDS = sizeof(Group::quants) / sizeof(ivec);
    static constexpr int BLOCKS = CHUNK / (GROUPS * WORDS * 4);  // decoded at once

    void tile(int64_t row, int64_t column, int64_t columns, const ColumnGroup *scales) {
        alignas(64) Group rows[BLOCKS * GROUPS];
        const int64_t stride = lda * sizeof(A);
        for (int64_t l = 0; l < k; l += BLOCKS) {
            const int64_t blocks = std::min<int64_t>(BLOCKS, k - l);
            const A *block = a + lda * row + l;
            // The next tile's rows arrive meanwhile: of 16 rows at a time the CPU guesses none.
            const uintptr_t next = uintptr_t(a) + (lda * (row + LANES) + l * LANES) * sizeof(A);
            for (int64_t i = 0; i < blocks; ++i) {
                Weights<A>::decode(block + i, stride, rows + i * GROUPS);
                for (size_t line = 0; line < LANES * sizeof(A); line += 64)
                    _mm_prefetch((const char *)(next + i * LANES * sizeof(A) + line), _MM_HINT_T0);
            }
            for (int64_t j = 0; j < columns; j += COLUMNS)
                multiply_up_to<COLUMNS>(columns - j, rows, blocks, b + ldb * (column + j) + l,
                                        scales + (k * j + l) * GROUPS, c + ldc * (column + j) + row,
                                        l == 0);
        }
    }

    template <int N>
    void multiply_up_to(int64_t n, const Group *rows, int64_t blocks, const B *columns,
                        const ColumnGroup *scales, float *to, bool first) {
        if constexpr (N > 1) {
            if (n < N)
                return multiply_up_to<N - 1>(n, rows, blocks, columns, scales, to, first);
        }
        multiply_columns<N>(rows, blocks, columns, scales, to, first);
    }

    template <int N>
    NOINLINE void multiply_columns(const Group *rows, int64_t blocks, const B *columns,
                                   const ColumnGroup *scales, float *to, bool first) {
        fvec sums[N];
        for (int j = 0; j < N; ++j)
            sums[j] = first ? fill(0.0f) : load(to + ldc * j);
        for (int64_t i = 0; i < blocks; ++i, ++columns) {
            for (int group = 0; group < GROUPS; ++group, ++rows, ++scales) {
                ivec dots[N];
                for (int j = 0; j < N; ++j)
                    dots[j] = fill(Weights<A>::above ? scales[k * GROUPS * j].start : 0);
                // the columns in turns, so that no sum waits for its last addition
                for (int word = 0; word < WORDS; ++word)
                    for (int j = 0; j < N; ++j)
                        dots[j] =
                            dot(dots[j], rows->quants[word],
                                fill(word_at(columns[ldb * j].qs + 4 * (WORDS * group + word))));
                for (int j = 0; j < N; ++j) {
                    const ColumnGroup &column = scales[k * GROUPS * j];
                    sums[j] = multiply_add(multiply(rows->scale, fill(column.scale)),
                                           to_floats(dots[j]), sums[j]);
                    if constexpr (Weights<A>::above == 0)
                        sums[j] = multiply_add(rows->minimum, fill(column.sum), sums[j]);
                }
            }
        }
        for (int j = 0; j < N; ++j)
            store(to + ldc * j, sums[j]);
    }

    const int64_t k;
    const A *const a;
    const int64_t lda;
    const B *const b;
    const int64_t ldb;
    float *const c;
    const int64_t ldc;
};

// The type of columns that m rows of a type are multiplied by here; GGML_TYPE_COUNT if they are
// not.
inline ggml_type quantized_columns(int a_type, int64_t m) {
    if (m % LANES != 0)
        return GGML_TYPE_COUNT;
    switch (a_type) {
        case GGML_TYPE_Q8_0: return DOT_TAKES_ALL_BYTES ? GGML_TYPE_Q8_0 : GGML_TYPE_COUNT;
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_Q5_0: return GGML_TYPE_Q8_0;
        case GGML_TYPE_Q4_1:
        case GGML_TYPE_Q5_1: return GGML_TYPE_Q8_1;
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K:
        case GGML_TYPE_Q6_K: return GGML_TYPE_Q8_K;
        default: return GGML_TYPE_COUNT;
    }
}

// The share of thread ith of nth of a product; the parameters are llamafile_sgemm's. B has the type
// that quantized_columns tells.
inline void quantized_product(int a_type, int64_t m, int64_t n, int64_t k, const void *a,
                              int64_t lda, const void *b, int64_t ldb, void *c, int64_t ldc,
                              int ith, int nth) {
    const auto multiply = [=](auto *a, auto *b) {
        QuantizedProduct(k, a, lda, b, ldb, static_cast<float *>(c), ldc).compute(m, n, ith, nth);
    };
    const auto *q8_0 = static_cast<const block_q8_0 *>(b);
    const auto *q8_1 = static_cast<const block_q8_1 *>(b);
    const auto *q8_K = static_cast<const block_q8_K *>(b);
    switch (a_type) {
        case GGML_TYPE_Q8_0: return multiply(static_cast<const block_q8_0 *>(a), q8_0);
        case GGML_TYPE_Q4_0: return multiply(static_cast<const block_q4_0 *>(a), q8_0);
        case GGML_TYPE_Q5_0: return multiply(static_cast<const block_q5_0 *>(a), q8_0);
        case GGML_TYPE_Q4_1: return multiply(static_cast<const block_q4_1 *>(a), q8_1);
        case GGML_TYPE_Q5_1: return multiply(static_cast<const block_q5_1 *>(a), q8_1);
        case GGML_TYPE_Q4_K: return multiply(static_cast<const block_q4_K *>(a), q8_K);
        case GGML_TYPE_Q5_K: return multiply(static_cast<const block_q5_K *>(a), q8_K);
        case GGML_TYPE_Q6_K: return multiply(static_cast<const block_q6_K *>(a), q8_K);
    }
}

}  // namespace

#else

namespace {

inline ggml_type quantized_columns(int, int64_t) { return GGML_TYPE_COUNT; }
inline void quantized_product(int, int64_t, int64_t, int64_t, const void *, int64_t, const void *,
                              int64_t, void *, int64_t, int, int) {}

}  // namespace

#endif
