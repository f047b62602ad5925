#include "models/program/picture_rows.h"

#include <algorithm>

namespace espalier::program {

void PictureRows::reserve(size_t max_tokens) {
  entries_.reserve(max_tokens);
  windows_.reserve(max_tokens);
}

void PictureRows::begin(int32_t sliding_window) {
  sliding_window_ = sliding_window;
  entries_.clear();
  windows_.clear();
}

// Rows [first, first + count) of an entry, as one whose last row sees up to last_position.
void PictureRows::add_rows(const BatchEntry& entry, int32_t first, int32_t count,
                           int32_t last_position) {
  BatchEntry& rows = entries_.emplace_back(entry);
  rows.query_begin = entry.query_begin + first;
  rows.num_query_tokens = count;
  rows.prefix_len = last_position - count + 1;
  const int32_t behind = rows.prefix_len - (entry.prefix_len + first);
  windows_.push_back(sliding_window_ > 0 ? sliding_window_ + behind : 0);
}

void PictureRows::add(const BatchEntry& entry, int32_t first_token,
                      std::span<const EmbeddingSpan> spans) {
  int32_t done = 0;
  const auto add_text = [&](int32_t end) {
    if (end > done) add_rows(entry, done, end - done, entry.prefix_len + end - 1);
    done = std::max(done, end);
  };
  for (const EmbeddingSpan& span : spans) {
    const int32_t at = span.token_begin - first_token;
    const int32_t begin = std::max(at, 0);
    const int32_t end = std::min(at + span.count, entry.num_query_tokens);
    if (begin >= end) continue;
    add_text(begin);
    const int32_t last = entry.prefix_len + at - span.first_row + span.rows->num_rows - 1;
    for (; done < end; ++done) add_rows(entry, done, 1, last);
  }
  add_text(entry.num_query_tokens);
}

}  // namespace espalier::program
