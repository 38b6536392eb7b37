// The vectors of matmul.h: 16 lanes of 32 bits with AVX512-VNNI, else 8 with AVX2.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

inline int32_t word_at(const void *p) {
    int32_t word;
    memcpy(&word, p, sizeof(word));
    return word;
}

inline __m128i chunk_at(const void *p) { return _mm_loadu_si128(static_cast<const __m128i *>(p)); }

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

using ivec = __m512i;
using fvec = __m512;

constexpr bool DOT_TAKES_ALL_BYTES = true;
constexpr int COLUMNS = 8;  // of B at once: 8 sums of floats, 8 of integers and 8 decoded words

inline ivec fill(int32_t x) { return _mm512_set1_epi32(x); }
inline fvec fill(float x) { return _mm512_set1_ps(x); }
inline ivec bits_and(ivec a, ivec b) { return _mm512_and_si512(a, b); }
inline ivec bits_or(ivec a, ivec b) { return _mm512_or_si512(a, b); }
inline ivec bits_xor(ivec a, ivec b) { return _mm512_xor_si512(a, b); }
inline ivec shift_left(ivec a, int bits) { return _mm512_slli_epi32(a, bits); }
inline ivec shift_right(ivec a, int bits) { return _mm512_srli_epi32(a, bits); }
inline ivec shift_right_signed(ivec a, int bits) { return _mm512_srai_epi32(a, bits); }
inline ivec low32(ivec a, ivec b) { return _mm512_unpacklo_epi32(a, b); }
inline ivec high32(ivec a, ivec b) { return _mm512_unpackhi_epi32(a, b); }
inline ivec low64(ivec a, ivec b) { return _mm512_unpacklo_epi64(a, b); }
inline ivec high64(ivec a, ivec b) { return _mm512_unpackhi_epi64(a, b); }
inline fvec to_floats(ivec a) { return _mm512_cvtepi32_ps(a); }
inline fvec multiply(fvec a, fvec b) { return _mm512_mul_ps(a, b); }
inline fvec multiply_add(fvec a, fvec b, fvec c) { return _mm512_fmadd_ps(a, b, c); }
inline fvec load(const float *p) { return _mm512_loadu_ps(p); }
inline void store(float *p, fvec a) { _mm512_storeu_ps(p, a); }

// the lower halves of all lanes, as half-precision numbers
inline fvec halves(ivec a) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); }

// adds to each lane the products of its four unsigned bytes of a by the four signed ones of b
inline ivec dot(ivec sum, ivec a, ivec b) { return _mm512_dpbusd_epi32(sum, a, b); }

// 16 bytes of rows 0, 4, 8 and 12
inline ivec chunks(const char *row, int64_t stride) {
    ivec a = _mm512_castsi128_si512(chunk_at(row));
    a = _mm512_inserti32x4(a, chunk_at(row + 4 * stride), 1);
    a = _mm512_inserti32x4(a, chunk_at(row + 8 * stride), 2);
    return _mm512_inserti32x4(a, chunk_at(row + 12 * stride), 3);
}

// four bits of each lane, the first at WORD * 4: a byte of 16 for each that is set
template <int WORD>
inline ivec fifth_bits(ivec bits) {
    const ivec byte = _mm512_broadcast_i32x4(
        _mm_add_epi8(_mm_set1_epi8(WORD / 2),
                     _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12)));
    const ivec bit = fill(WORD % 2 ? int32_t(0x80402010) : 0x08040201);
    return _mm512_maskz_set1_epi8(_mm512_test_epi8_mask(_mm512_shuffle_epi8(bits, byte), bit), 16);
}

#else

using ivec = __m256i;
using fvec = __m256;

#if defined(__AVXVNNI__)
constexpr bool DOT_TAKES_ALL_BYTES = true;
#else
constexpr bool DOT_TAKES_ALL_BYTES = false;  // of a, up to 128: two products are summed in 16 bits
#endif
constexpr int COLUMNS = 4;

inline ivec fill(int32_t x) { return _mm256_set1_epi32(x); }
inline fvec fill(float x) { return _mm256_set1_ps(x); }
inline ivec bits_and(ivec a, ivec b) { return _mm256_and_si256(a, b); }
inline ivec bits_or(ivec a, ivec b) { return _mm256_or_si256(a, b); }
inline ivec bits_xor(ivec a, ivec b) { return _mm256_xor_si256(a, b); }
inline ivec shift_left(ivec a, int bits) { return _mm256_slli_epi32(a, bits); }
inline ivec shift_right(ivec a, int bits) { return _mm256_srli_epi32(a, bits); }
inline ivec shift_right_signed(ivec a, int bits) { return _mm256_srai_epi32(a, bits); }
inline ivec low32(ivec a, ivec b) { return _mm256_unpacklo_epi32(a, b); }
inline ivec high32(ivec a, ivec b) { return _mm256_unpackhi_epi32(a, b); }
inline ivec low64(ivec a, ivec b) { return _mm256_unpacklo_epi64(a, b); }
inline ivec high64(ivec a, ivec b) { return _mm256_unpackhi_epi64(a, b); }
inline fvec to_floats(ivec a) { return _mm256_cvtepi32_ps(a); }
inline fvec multiply(fvec a, fvec b) { return _mm256_mul_ps(a, b); }
inline fvec multiply_add(fvec a, fvec b, fvec c) { return _mm256_fmadd_ps(a, b, c); }
inline fvec load(const float *p) { return _mm256_loadu_ps(p); }
inline void store(float *p, fvec a) { _mm256_storeu_ps(p, a); }

inline fvec halves(ivec a) {
    a = bits_and(a, fill(0xffff));
    a = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, a), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(a));
}

inline ivec dot(ivec sum, ivec a, ivec b) {
#if defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(sum, a, b);
#else
    return _mm256_add_epi32(sum,
                            _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
#endif
}

// 16 bytes of rows 0 and 4
inline ivec chunks(const char *row, int64_t stride) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(chunk_at(row)),
                                   chunk_at(row + 4 * stride), 1);
}

template <int WORD>
inline ivec fifth_bits(ivec bits) {
    const ivec byte = _mm256_broadcastsi128_si256(
        _mm_add_epi8(_mm_set1_epi8(WORD / 2),
                     _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12)));
    const ivec bit = fill(WORD % 2 ? int32_t(0x80402010) : 0x08040201);
    const ivec set = _mm256_cmpeq_epi8(bits_and(_mm256_shuffle_epi8(bits, byte), bit), bit);
    return bits_and(set, fill(0x10101010));
}

#endif

constexpr int LANES = sizeof(ivec) / sizeof(int32_t);

}  // namespace
