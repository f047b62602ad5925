// Codes of 4 bits with scales of groups become bfloat16 in registers, for coded_experts.cu. Device
// code only.
//
// A word of codes is a thread's fragment of 16 inputs: its first row's in bytes 0 and 2, that of
// the row eight further in bytes 1 and 3; of a byte, inputs k in the low bits and k + 8 in the high
// ones, k even in bytes 0 and 1 and odd in the others (linear/int4_weights.cu).
#pragma once

#include <cuda_fp16.h>

#include "kernels/linear/int4_codes.cuh"
#include "kernels/moe/int4_experts.h"

namespace espalier::kernels::cuda {

// The 16 rows that one of a record's four warps has.
inline constexpr int32_t kInt4ExpertPartBytes = kInt4ExpertRecordBytes / 4;

// The fragment of a word, as whole numbers over 64; zero points by int4_zero_pair().
__device__ __forceinline__ void widen_int4_word(uint32_t word, __nv_bfloat162 upper,
                                                __nv_bfloat162 lower, uint32_t (&fragment)[4]) {
  fragment[0] = int4_pair<false>(word, upper);
  fragment[1] = int4_pair<false>(word >> 8, lower);
  fragment[2] = int4_pair<true>(word, upper);
  fragment[3] = int4_pair<true>(word >> 8, lower);
}

// A scale as two bfloat16, twice each, that whole numbers become weights by, rounded once: the part
// of a scale that bfloat16 lacks has three bits, so what it adds is exact and the sum of both is
// rounded.
struct Int4Factor {
  __nv_bfloat162 most, rest;
  __device__ explicit Int4Factor(float scale) {
    most = __float2bfloat162_rn(scale);
    rest = __float2bfloat162_rn(scale - __low2float(most));
  }
  __device__ __forceinline__ uint32_t times(uint32_t whole) const {
    return bits_of(__hfma2(bfloat_pair(whole), most, __hmul2(bfloat_pair(whole), rest)));
  }
};

// Makes the fragment of a word weights, of rows with these factors.
__device__ __forceinline__ void widen_int4_weights(uint32_t word, __nv_bfloat162 upper_zero,
                                                   __nv_bfloat162 lower_zero,
                                                   const Int4Factor& upper, const Int4Factor& lower,
                                                   uint32_t (&fragment)[4]) {
  widen_int4_word(word, upper_zero, lower_zero, fragment);
#pragma unroll
  for (int j = 0; j < 4; ++j) fragment[j] = (j % 2 == 0 ? upper : lower).times(fragment[j]);
}

// The scales and zero points of the calling thread's two rows of a record.
struct Int4ExpertScales {
  __half2 scales;
  uint32_t zeros;  // bytes

  __device__ Int4ExpertScales(const char* record, int thread)
      : Int4ExpertScales(record + kInt4ExpertCodeBytes,
                         record + kInt4ExpertCodeBytes + kInt4ExpertScaleBytes, thread) {}
  __device__ Int4ExpertScales(const char* all_scales, const char* all_zeros, int thread)
      : scales(reinterpret_cast<const __half2*>(all_scales)[thread / 4]),
        zeros(reinterpret_cast<const uint16_t*>(all_zeros)[thread / 4]) {}
  __device__ __forceinline__ float upper() const { return kInt4Whole * __low2float(scales); }
  __device__ __forceinline__ float lower() const { return kInt4Whole * __high2float(scales); }
  __device__ __forceinline__ __nv_bfloat162 upper_zero() const {
    return int4_zero_pair(zeros & 0xff);
  }
  __device__ __forceinline__ __nv_bfloat162 lower_zero() const {
    return int4_zero_pair(zeros >> 8);
  }
};

// The calling thread's weights of 64 inputs of a record, the first or the second, in bfloat16.
class Int4ExpertWeights {
 public:
  // thread: of the warp group.
  __device__ Int4ExpertWeights(const char* record, int thread, int box) : scales_(record, thread) {
    constexpr int kVectors = kInt4ExpertCodeBytes / 2 / 16;
    words_ = reinterpret_cast<const uint4*>(record)[thread + box * kVectors];
  }
  // The fragments of 32 inputs, the PART-th of these.
  template <int PART>
  __device__ __forceinline__ void widen(uint32_t (&fragments)[2][4]) const {
    const __nv_bfloat162 upper_zero = scales_.upper_zero(), lower_zero = scales_.lower_zero();
    const Int4Factor upper(scales_.upper()), lower(scales_.lower());
    widen_int4_weights(PART == 0 ? words_.x : words_.z, upper_zero, lower_zero, upper, lower,
                       fragments[0]);
    widen_int4_weights(PART == 0 ? words_.y : words_.w, upper_zero, lower_zero, upper, lower,
                       fragments[1]);
  }

 private:
  uint4 words_;
  Int4ExpertScales scales_;
};

// The calling thread's codes of a record.
struct Int4ExpertCodes {
  static constexpr int kInputs = kInt4ExpertInputs;  // of a record: a group
  static constexpr int kRecordBytes = kInt4ExpertRecordBytes;
  // The sum over a record is scaled in float32, where registers hold it beside all sums.
  static constexpr bool kScalesSums = true;
  static constexpr float kWhole = 1;
  using Weights = Int4ExpertWeights;
  static constexpr Int4ExpertShape shape(int32_t out, int32_t in, bool gated) {
    return {out, in, gated};
  }

  uint4 first, second;  // of 64 inputs each
  Int4ExpertScales scales;

  // thread: of the warp group.
  __device__ Int4ExpertCodes(const char* record, int thread)
      : first(reinterpret_cast<const uint4*>(record)[thread]),
        second(reinterpret_cast<const uint4*>(record + kInt4ExpertCodeBytes / 2)[thread]),
        scales(record, thread) {}
  // Of a warp's part alone, kInt4ExpertPartBytes: the codes of 64 inputs, those of the other 64,
  // scales, zero points.
  static __device__ Int4ExpertCodes of_part(const char* part, int lane) {
    constexpr int kScalesAt = kInt4ExpertCodeBytes / 4;
    return {reinterpret_cast<const uint4*>(part)[lane],
            reinterpret_cast<const uint4*>(part + kScalesAt / 2)[lane],
            Int4ExpertScales(part + kScalesAt, part + kScalesAt + kInt4ExpertScaleBytes / 4, lane)};
  }
  // The fragments of 32 inputs, the PART-th of the record, as whole numbers over 64: times 64 and
  // the rows' scales they are the weights.
  template <int PART>
  __device__ __forceinline__ void widen_whole(uint32_t (&fragments)[2][4]) const {
    const __nv_bfloat162 upper = scales.upper_zero(), lower = scales.lower_zero();
    const uint4& words = PART < 2 ? first : second;
    widen_int4_word(PART % 2 == 0 ? words.x : words.z, upper, lower, fragments[0]);
    widen_int4_word(PART % 2 == 0 ? words.y : words.w, upper, lower, fragments[1]);
  }

 private:
  __device__ Int4ExpertCodes(const uint4& of_first, const uint4& of_second,
                             const Int4ExpertScales& of_rows)
      : first(of_first), second(of_second), scales(of_rows) {}
};

// The same of groups of 32, which become weights in bfloat16, rounded once.
struct Int4SmallCodes {
  static constexpr int kInputs = kInt4SmallInputs;  // of a record
  static constexpr int kRecordBytes = kInt4SmallRecordBytes, kPartBytes = kRecordBytes / 4;
  static constexpr int kScaleBytes = kInt4SmallScaleBytes;
  static constexpr bool kScalesSums = false;
  static constexpr float kWhole = 1;
  using Weights = Int4SmallCodes;
  static constexpr Int4ExpertShape shape(int32_t out, int32_t in, bool gated) {
    return {out, in, gated, kInt4SmallGroup};
  }

  uint4 words;
  uint2 scales;    // float16, of the upper and the lower row of the first group, then of the other
  uint32_t zeros;  // alike

  // thread: of the warp group. A record has the inputs of one box alone.
  __device__ Int4SmallCodes(const char* record, int thread, int /*box*/)
      : Int4SmallCodes(record, record + kInt4SmallCodeBytes,
                       record + kInt4SmallCodeBytes + kInt4SmallScaleBytes, thread) {}
  // Of a warp's part alone, kPartBytes.
  static __device__ Int4SmallCodes of_part(const char* part, int lane) {
    constexpr int kScalesAt = kInt4SmallCodeBytes / 4;
    return {part, part + kScalesAt, part + kScalesAt + kInt4SmallScaleBytes / 4, lane};
  }
  // The fragments of 32 inputs, the PART-th group of the record.
  template <int PART>
  __device__ __forceinline__ void widen(uint32_t (&fragments)[2][4]) const {
    const uint32_t both = PART == 0 ? scales.x : scales.y;
    const __half2 halves = *reinterpret_cast<const __half2*>(&both);
    const Int4Factor upper(kInt4Whole * __low2float(halves));
    const Int4Factor lower(kInt4Whole * __high2float(halves));
    const __nv_bfloat162 upper_zero = int4_zero_pair(zeros >> 16 * PART & 0xff);
    const __nv_bfloat162 lower_zero = int4_zero_pair(zeros >> (16 * PART + 8) & 0xff);
    widen_int4_weights(PART == 0 ? words.x : words.z, upper_zero, lower_zero, upper, lower,
                       fragments[0]);
    widen_int4_weights(PART == 0 ? words.y : words.w, upper_zero, lower_zero, upper, lower,
                       fragments[1]);
  }

 private:
  __device__ Int4SmallCodes(const char* codes, const char* all_scales, const char* all_zeros,
                            int thread)
      : words(reinterpret_cast<const uint4*>(codes)[thread]),
        scales(reinterpret_cast<const uint2*>(all_scales)[thread / 4]),
        zeros(reinterpret_cast<const uint32_t*>(all_zeros)[thread / 4]) {}
};

}  // namespace espalier::kernels::cuda
