// Attention of one tile, one generic source for every instruction set.
//
// A tile's rows are the queries of `tokens` tokens under `kv_heads` key/value heads, each shared by
// `group` heads. Keys are processed in blocks of kAttentionBlock absolute positions. For each block
//  1. K is gathered from its pages, widened and transposed; scores = q K^T, a key a lane;
//  2. each row's scores are masked and turned into weights exp(score - largest so far);
//  3. V is gathered; values = values * (decay of the old largest score) + weights V.
// Masked keys have weight zero and add exact zeros, so a row's sums are the same whatever other
// rows its tile has and however far the tile's context reaches.
#pragma once

#include <cstdint>

#include "kernels/cpu/math.h"
#include "kernels/cpu/table.h"

namespace espalier::kernels {
namespace {

constexpr int64_t kBlock = 64;    // kAttentionBlock
constexpr int64_t kSplit = 1024;  // kAttentionSplit

inline int64_t padded(int64_t head_dim) {
  return (head_dim + simd::kWidth - 1) / simd::kWidth * simd::kWidth;
}

inline float exp_of(float x) {
  float lanes[simd::kWidth];
  simd::store(lanes, exp(simd::set1(x)));
  return lanes[0];
}

// One row's softmax so far: values[i] = sum of weight * v[i], weights relative to `largest`.
struct RowState {
  float* at;  // [kAttentionStateHeader + padded(head_dim)]
  float& largest() const { return at[0]; }
  float& sum() const { return at[1]; }
  float* values() const { return at + kAttentionStateHeader; }
  void clear(int64_t dim) const {
    largest() = -__builtin_inff();
    sum() = 0;
    for (int64_t i = 0; i < dim; i += simd::kWidth) simd::store(values() + i, simd::zero());
  }
};

int64_t attention_state_floats(int64_t head_dim) {
  return kAttentionStateHeader + (padded(head_dim) + 15) / 16 * 16;
}

// Scratch of a tile, in floats.
struct TileScratch {
  float* q;        // [rows, dim]
  float* keys;     // [kBlock, dim]: V, or K where it is widened first
  float* keys_t;   // [dim, kBlock]
  float* weights;  // [rows, kBlock]
  float* decay;    // [rows]: what a block's new largest score makes of the sums before
  float* part;     // [rows] states of the split in work
  float* whole;    // [rows] states of the splits before
};

int64_t attention_scratch_floats(int64_t rows, int64_t head_dim) {
  const int64_t dim = padded(head_dim);
  return rows * (dim + kBlock + 16 + 2 * attention_state_floats(head_dim)) + 2 * kBlock * dim;
}

inline TileScratch cut_scratch(float* at, int64_t rows, int64_t head_dim) {
  const int64_t dim = padded(head_dim);
  TileScratch s;
  s.keys = at;
  s.keys_t = s.keys + kBlock * dim;
  s.q = s.keys_t + kBlock * dim;
  s.weights = s.q + rows * dim;
  s.part = s.weights + rows * kBlock;
  s.whole = s.part + rows * attention_state_floats(head_dim);
  s.decay = s.whole + rows * attention_state_floats(head_dim);
  return s;
}

// One head's row as float32, filled up with zeros to `dim`.
inline void widen_row(const void* from, bool bf16, int64_t head_dim, float* to) {
  using namespace simd;
  const int64_t whole = head_dim / kWidth * kWidth;
  if (bf16) {
    const auto* row = static_cast<const uint16_t*>(from);
    for (int64_t i = 0; i < whole; i += kWidth) store(to + i, load_bf16(row + i));
    if (whole < head_dim) {
      uint16_t last[kWidth] = {};
      for (int64_t i = whole; i < head_dim; ++i) last[i - whole] = row[i];
      store(to + whole, load_bf16(last));
    }
  } else {
    const auto* row = static_cast<const float*>(from);
    for (int64_t i = 0; i < whole; i += kWidth) store(to + i, load(row + i));
    if (whole < head_dim) store(to + whole, load_part(row + whole, head_dim - whole, 0));
  }
}

// The offsets of the rows of a block of positions in either plane, in bytes from its start.
struct BlockRows {
  int64_t offsets[kBlock];
  int64_t count;
};

inline BlockRows find_rows(const AttentionTile& tile, int64_t begin, int64_t count) {
  const int64_t bytes = tile.bf16 ? 2 : 4;
  BlockRows rows;
  rows.count = count;
  int64_t page = begin / tile.page_size, row = begin % tile.page_size;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = tile.page_offsets != nullptr ? tile.page_offsets[page]
                                                    : tile.page_table[page] * tile.page_stride;
    rows.offsets[i] = (at + row * tile.token_stride) * bytes;
    if (++row == tile.page_size) row = 0, ++page;
  }
  return rows;
}

inline const void* row_at(const void* plane, const BlockRows& rows, int64_t i) {
  return static_cast<const char*>(plane) + rows.offsets[i];
}

// Prefetches the rows of a later block, all heads of a tile together since they are adjacent: a
// line of K and one of V at each step. The prefetches are spread over the arithmetic, because a
// core has few requests in flight at a time and a burst of them would stall it.
class Ahead {
 public:
  Ahead(const AttentionTile& tile, const BlockRows& rows)
      : tile_(tile),
        rows_(rows),
        row_bytes_(((tile.kv_heads - 1) * tile.head_stride + tile.head_dim) * (tile.bf16 ? 2 : 4)) {
  }

  void step() {
    if (row_ >= rows_.count) return;
    simd::prefetch_far(static_cast<const char*>(row_at(tile_.k, rows_, row_)) + byte_);
    simd::prefetch_far(static_cast<const char*>(row_at(tile_.v, rows_, row_)) + byte_);
    byte_ += 64;
    if (byte_ >= row_bytes_) byte_ = 0, ++row_;
  }

 private:
  const AttentionTile& tile_;
  const BlockRows& rows_;
  const int64_t row_bytes_;
  int64_t row_ = 0;
  int64_t byte_ = 0;
};

inline void gather_values(const AttentionTile& tile, const void* plane, const BlockRows& rows,
                          float* to) {
  const int64_t dim = padded(tile.head_dim);
  for (int64_t i = 0; i < rows.count; ++i) {
    widen_row(row_at(plane, rows, i), tile.bf16, tile.head_dim, to + i * dim);
  }
}

// Keys to columns: keys_t[i][key]. Columns beyond the last key repeat it; the mask hides them.
template <typename Element>
inline void transpose_keys(const BlockRows& rows, const void* plane, int64_t dim, int64_t width,
                           float* keys_t) {
  for (int64_t key = 0; key < rows.count; key += simd::kWidth) {
    const Element* from[simd::kWidth];
    for (int64_t i = 0; i < simd::kWidth; ++i) {
      const int64_t last = rows.count - 1;
      from[i] = static_cast<const Element*>(row_at(plane, rows, key + i < last ? key + i : last));
    }
    for (int64_t i = 0; i < dim; i += width) {
      simd::transpose(from, i, keys_t + i * kBlock + key, kBlock);
    }
  }
}

inline void load_keys(const AttentionTile& tile, const void* plane, const BlockRows& rows,
                      const TileScratch& s) {
  const int64_t width = tile.bf16 ? 2 * simd::kWidth : simd::kWidth;
  if (tile.head_dim % width == 0) {
    tile.bf16 ? transpose_keys<uint16_t>(rows, plane, tile.head_dim, width, s.keys_t)
              : transpose_keys<float>(rows, plane, tile.head_dim, width, s.keys_t);
    return;
  }
  // A head that does not fill the vectors is filled up with zeros first.
  const int64_t dim = padded(tile.head_dim);
  BlockRows wide;
  wide.count = rows.count;
  for (int64_t i = 0; i < rows.count; ++i) {
    widen_row(row_at(plane, rows, i), tile.bf16, tile.head_dim, s.keys + i * dim);
    wide.offsets[i] = i * dim * static_cast<int64_t>(sizeof(float));
  }
  transpose_keys<float>(wide, s.keys, dim, simd::kWidth, s.keys_t);
}

// Scores of kRows rows with four vectors of keys, from key `key` on.
template <int64_t kRows>
inline void score_rows(const TileScratch& s, int64_t row, int64_t key, int64_t dim, Ahead& ahead) {
  using namespace simd;
  const float* q = s.q + row * dim;
  const float* k = s.keys_t + key;
  F sums[kRows][4];
  for (auto& row_sums : sums) {
    for (F& sum : row_sums) sum = zero();
  }
  for (int64_t i = 0; i < dim; ++i, k += kBlock) {
    ahead.step();
    const F k0 = load(k), k1 = load(k + kWidth), k2 = load(k + 2 * kWidth),
            k3 = load(k + 3 * kWidth);
    for (int64_t r = 0; r < kRows; ++r) {
      const F factor = set1(q[r * dim + i]);
      sums[r][0] = fma(factor, k0, sums[r][0]);
      sums[r][1] = fma(factor, k1, sums[r][1]);
      sums[r][2] = fma(factor, k2, sums[r][2]);
      sums[r][3] = fma(factor, k3, sums[r][3]);
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t v = 0; v < 4; ++v) {
      store(s.weights + (row + r) * kBlock + key + v * kWidth, sums[r][v]);
    }
  }
}

// values = values * decay + weights V for kRows rows and kVectors vectors of the head, at `i`.
template <int64_t kRows, int64_t kVectors>
inline void value_rows(const TileScratch& s, int64_t row, int64_t state, int64_t count, int64_t dim,
                       int64_t i, Ahead& ahead) {
  using namespace simd;
  const float* weights = s.weights + row * kBlock;
  const float* v = s.keys + i;
  float* values = s.part + row * state + kAttentionStateHeader + i;
  F sums[kRows][kVectors];
  for (int64_t r = 0; r < kRows; ++r) {
    const F decay = set1(s.decay[row + r]);
    for (int64_t c = 0; c < kVectors; ++c) {
      sums[r][c] = mul(load(values + r * state + c * kWidth), decay);
    }
  }
  for (int64_t key = 0; key < count; ++key, v += dim) {
    ahead.step();
    F vs[kVectors];
    for (int64_t c = 0; c < kVectors; ++c) vs[c] = load(v + c * kWidth);
    for (int64_t r = 0; r < kRows; ++r) {
      const F weight = set1(weights[r * kBlock + key]);
      for (int64_t c = 0; c < kVectors; ++c) sums[r][c] = fma(weight, vs[c], sums[r][c]);
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kVectors; ++c) store(values + r * state + c * kWidth, sums[r][c]);
  }
}

// Rows [begin, end) of q K^T and of weights V, kAttentionRows at a time, and the rest in fours and
// one by one with the same code.
inline void score_all(const TileScratch& s, int64_t begin, int64_t end, int64_t count, int64_t dim,
                      Ahead& ahead) {
  for (int64_t key = 0; key < count; key += 4 * simd::kWidth) {
    int64_t row = begin;
    for (; row + simd::kAttentionRows <= end; row += simd::kAttentionRows) {
      score_rows<simd::kAttentionRows>(s, row, key, dim, ahead);
    }
    for (; row + 4 <= end; row += 4) score_rows<4>(s, row, key, dim, ahead);
    for (; row < end; ++row) score_rows<1>(s, row, key, dim, ahead);
  }
}

template <int64_t kVectors>
inline void value_columns(const TileScratch& s, int64_t begin, int64_t end, int64_t state,
                          int64_t count, int64_t dim, int64_t i, Ahead& ahead) {
  int64_t row = begin;
  for (; row + simd::kAttentionRows <= end; row += simd::kAttentionRows) {
    value_rows<simd::kAttentionRows, kVectors>(s, row, state, count, dim, i, ahead);
  }
  for (; row + 4 <= end; row += 4) value_rows<4, kVectors>(s, row, state, count, dim, i, ahead);
  for (; row < end; ++row) value_rows<1, kVectors>(s, row, state, count, dim, i, ahead);
}

inline void value_all(const TileScratch& s, int64_t begin, int64_t end, int64_t state,
                      int64_t count, int64_t dim, Ahead& ahead) {
  int64_t i = 0;
  for (; i + 4 * simd::kWidth <= dim; i += 4 * simd::kWidth) {
    value_columns<4>(s, begin, end, state, count, dim, i, ahead);
  }
  for (; i < dim; i += simd::kWidth) value_columns<1>(s, begin, end, state, count, dim, i, ahead);
}

// Turns one row's scores into weights and moves its state on. visible: the row sees keys
// [first, last] of the block, as indices that may lie outside of it.
inline void weigh_row(const AttentionTile& tile, RowState state, int64_t first, int64_t last,
                      float* weights, float* decay) {
  using namespace simd;
  constexpr int64_t kVectors = kBlock / kWidth;
  static const float kIota[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const F lowest = set1(-__builtin_inff());
  const bool masked = first > 0 || last < kBlock - 1;
  F scores[kVectors];
  F most = lowest;
  for (int64_t v = 0; v < kVectors; ++v) {
    F score = mul(load(weights + v * kWidth), set1(tile.scale));
    if (tile.softcap > 0) {
      score = mul(tanh(div(score, set1(tile.softcap))), set1(tile.softcap));
    }
    if (masked) {
      const F key = add(load(kIota), set1(static_cast<float>(v * kWidth)));
      score = where_less(set1(static_cast<float>(last)), key, lowest, score);
      score = where_less(key, set1(static_cast<float>(first)), lowest, score);
    }
    scores[v] = score;
    most = max(score, most);
  }
  const float before = state.largest();
  const float block_largest = reduce_max(most);
  const float largest = block_largest > before ? block_largest : before;
  // No finite score yet (only NaN, or no key at all): any finite offset leaves weights of zero.
  const float offset = largest == -__builtin_inff() ? 0.0f : largest;
  F sum = zero();
  for (int64_t v = 0; v < kVectors; ++v) {
    const F weight = exp(sub(scores[v], set1(offset)));
    store(weights + v * kWidth, weight);
    sum = add(sum, weight);
  }
  *decay = exp_of(before - offset);
  state.largest() = largest;
  state.sum() = state.sum() * *decay + reduce_add(sum);
}

// whole = whole combined with the partial result after it.
inline void combine_state(RowState whole, RowState part, int64_t dim) {
  using namespace simd;
  const float a = whole.largest(), b = part.largest();
  const float largest = a > b ? a : b;
  const float offset = largest == -__builtin_inff() ? 0.0f : largest;
  const float keep = exp_of(a - offset), take = exp_of(b - offset);
  whole.largest() = largest;
  whole.sum() = whole.sum() * keep + part.sum() * take;
  for (int64_t i = 0; i < dim; i += kWidth) {
    float* values = whole.values() + i;
    store(values, fma(load(part.values() + i), set1(take), mul(load(values), set1(keep))));
  }
}

// sink: null, or a score that takes its share of the softmax and has no value. It may be so far
// above the others that its weight is infinite; the result is then zero, as it should be.
inline void write_result(RowState state, int64_t head_dim, const float* sink, float* out) {
  using namespace simd;
  const float share = sink == nullptr ? 0.0f : exp_of(*sink - state.largest());
  const F sum = set1(state.sum() + share);
  int64_t i = 0;
  for (; i + kWidth <= head_dim; i += kWidth) store(out + i, div(load(state.values() + i), sum));
  if (i < head_dim) {
    store_part(out + i, head_dim - i, div(load(state.values() + i), sum));
  }
}

// One block of keys for all rows that see any of it.
inline void attend_block(const AttentionTile& tile, const TileScratch& s, int64_t begin) {
  const int64_t dim = padded(tile.head_dim), state = attention_state_floats(tile.head_dim);
  const int64_t count = tile.end - begin < kBlock ? tile.end - begin : kBlock;
  // Tokens before the block see none of it; nor do those whose window begins after it.
  int64_t first_token = begin - tile.first_position;
  if (first_token < 0) first_token = 0;
  int64_t end_token = tile.tokens;
  if (tile.sliding_window > 0) {
    const int64_t last_position = begin + count - 1 + tile.sliding_window - 1;
    const int64_t beyond = last_position - tile.first_position + 1;
    if (beyond < end_token) end_token = beyond;
  }
  if (first_token >= end_token) return;

  const BlockRows rows = find_rows(tile, begin, count);
  const int64_t left = tile.end - begin - kBlock;
  const BlockRows next = find_rows(tile, begin + kBlock,
                                   left > kBlock ? kBlock
                                   : left > 0    ? left
                                                 : 0);
  const int64_t head_rows = tile.tokens * tile.group;
  Ahead ahead(tile, next);
  for (int64_t head = 0; head < tile.kv_heads; ++head) {
    const int64_t plane_offset = head * tile.head_stride * (tile.bf16 ? 2 : 4);
    TileScratch h = s;
    h.q += head * head_rows * dim;
    h.part += head * head_rows * state;
    load_keys(tile, static_cast<const char*>(tile.k) + plane_offset, rows, h);
    const int64_t row_begin = first_token * tile.group, row_end = end_token * tile.group;
    score_all(h, row_begin, row_end, count, dim, ahead);
    for (int64_t row = row_begin; row < row_end; ++row) {
      const int64_t last = tile.first_position + row / tile.group - begin;
      const int64_t first = tile.sliding_window > 0 ? last - tile.sliding_window + 1 : 0;
      weigh_row(tile, {h.part + row * state}, first, last, h.weights + row * kBlock, h.decay + row);
    }
    gather_values(tile, static_cast<const char*>(tile.v) + plane_offset, rows, h.keys);
    value_all(h, row_begin, row_end, state, count, dim, ahead);
  }
}

// A row's query head, counted from the tile's first.
inline int64_t head_of(const AttentionTile& tile, int64_t row) {
  return row / (tile.tokens * tile.group) * tile.group + row % tile.group;
}

// The offset of a row's query or result.
inline int64_t row_offset(const AttentionTile& tile, int64_t row, int64_t token_stride) {
  const int64_t token = row / tile.group % tile.tokens;
  return token * token_stride + head_of(tile, row) * tile.head_dim;
}

void attention_tile(const AttentionTile& tile, float* scratch) {
  const int64_t rows = tile.kv_heads * tile.tokens * tile.group;
  const int64_t dim = padded(tile.head_dim), state = attention_state_floats(tile.head_dim);
  TileScratch s = cut_scratch(scratch, rows, tile.head_dim);
  if (tile.state != nullptr) s.whole = tile.state;
  for (int64_t row = 0; row < rows; ++row) {
    widen_row(tile.q + row_offset(tile, row, tile.q_stride), false, tile.head_dim, s.q + row * dim);
  }
  // Splits are combined first to last, as attention_combine does with partial results of other
  // threads.
  for (int64_t begin = tile.begin, end; begin < tile.end; begin = end) {
    end = (begin / kSplit + 1) * kSplit;
    if (end > tile.end) end = tile.end;
    float* into = begin == tile.begin ? s.whole : s.part;
    TileScratch part = s;
    part.part = into;
    for (int64_t row = 0; row < rows; ++row) RowState{into + row * state}.clear(dim);
    for (int64_t block = begin; block < end; block += kBlock) attend_block(tile, part, block);
    if (into == s.whole) continue;
    for (int64_t row = 0; row < rows; ++row) {
      combine_state({s.whole + row * state}, {s.part + row * state}, dim);
    }
  }
  if (tile.state != nullptr) return;
  for (int64_t row = 0; row < rows; ++row) {
    const float* sink = tile.sinks == nullptr ? nullptr : tile.sinks + head_of(tile, row);
    write_result({s.whole + row * state}, tile.head_dim, sink,
                 tile.out + row_offset(tile, row, tile.out_stride));
  }
}

void attention_combine_parts(float* states, int64_t stride, int64_t parts, int64_t head_dim,
                             const float* sink, float* out) {
  for (int64_t part = 1; part < parts; ++part) {
    combine_state({states}, {states + part * stride}, padded(head_dim));
  }
  write_result({states}, head_dim, sink, out);
}

}  // namespace
}  // namespace espalier::kernels
