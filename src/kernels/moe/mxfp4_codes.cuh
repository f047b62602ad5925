// Codes of MXFP4 become bfloat16 in registers, for kernels of experts in codes. Device code only.
#pragma once

#include "kernels/cuda/barrier.cuh"
#include "kernels/moe/mxfp4_weights.h"

namespace espalier::kernels::cuda {

// The calling thread's codes of a record, and the exponents of its two rows' factors.
struct Mxfp4Codes {
  static constexpr int kInputs = kMxfp4Inputs;  // of a record
  static constexpr int kRecordBytes = kMxfp4RecordBytes;
  // Of the 16 rows that one of a record's four warps has: codes, then exponents.
  static constexpr int kPartBytes = kRecordBytes / 4;
  static constexpr int kScaleBytes = kRecordBytes - kMxfp4CodeBytes;
  static constexpr bool kScalesSums = false;  // numbers are exact with their factors
  // Weights are multiplied as this part of themselves (mxfp4_weights.cu).
  static constexpr float kWhole = 0x1p62f;
  using Weights = Mxfp4Codes;
  static constexpr Mxfp4Shape shape(int32_t out, int32_t in, bool gated) {
    return {out, in, gated};
  }

  uint4 words;
  uint32_t exponents;

  // thread: of the warp group. A record has the inputs of one box alone.
  __device__ Mxfp4Codes(const char* record, int thread, int /*box*/) {
    words = reinterpret_cast<const uint4*>(record)[thread];
    exponents = reinterpret_cast<const uint32_t*>(record + kMxfp4CodeBytes)[thread / 4];
  }
  // Of a warp's part alone, kPartBytes.
  static __device__ Mxfp4Codes of_part(const char* part, int lane) {
    return {reinterpret_cast<const uint4*>(part)[lane],
            reinterpret_cast<const uint32_t*>(part + kMxfp4CodeBytes / 4)[lane / 4]};
  }
  // The fragments of 32 inputs, the PART-th of the record.
  template <int PART>
  __device__ __forceinline__ void widen(uint32_t (&fragments)[2][4]) const {
    widen_word(PART == 0 ? words.x : words.z, factor<2 * PART>(), factor<2 * PART + 1>(),
               fragments[0]);
    widen_word(PART == 0 ? words.y : words.w, factor<2 * PART>(), factor<2 * PART + 1>(),
               fragments[1]);
  }

 private:
  __device__ Mxfp4Codes(const uint4& of_words, uint32_t of_exponents)
      : words(of_words), exponents(of_exponents) {}
  // Twice the bfloat16 of an exponent.
  template <int I>
  __device__ __forceinline__ uint32_t factor() const {
    return __byte_perm(exponents, 0, 0x4040 | I << 8 | I) << 7;
  }
  static __device__ __forceinline__ uint32_t multiply_pair(uint32_t a, uint32_t b) {
    uint32_t result = 0;
    ESP_HOPPER_ASM("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
  }
  // The fragment of 16 inputs of a word of codes (mxfp4_weights.cu): a code's bits are a bfloat16,
  // of 2^-126 of its number, that a row's factor multiplies exactly.
  static __device__ __forceinline__ void widen_word(uint32_t word, uint32_t upper, uint32_t lower,
                                                    uint32_t (&fragment)[4]) {
    constexpr uint32_t kBits = 0x81c081c0;
    fragment[0] = multiply_pair(word & kBits, upper);
    fragment[1] = multiply_pair(word << 3 & kBits, lower);
    fragment[2] = multiply_pair(word << 6 & kBits, upper);
    const uint32_t rest =
        (word << 1 & 0x80008000) | (word >> 5 & 0x01000100) | (word >> 4 & 0x00c000c0);
    fragment[3] = multiply_pair(rest, lower);
  }
};

}  // namespace espalier::kernels::cuda
