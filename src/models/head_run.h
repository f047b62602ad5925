// For tests of this room: what a draft head makes of one text behind its model, in any cut, beside
// the reference that tools/goldens has written.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"
#include "models/draft_head.h"
#include "models/golden.h"
#include "models/model.h"

namespace espalier {

inline constexpr int32_t kHeadSteps = 4;  // of a reference: tokens that are drafted in a row

template <typename T>
std::vector<T> tensor_values(const SafetensorsFile& file, std::string_view name) {
  for (const CheckpointTensor& tensor : file.tensors()) {
    if (tensor.name != name) continue;
    const auto* data = reinterpret_cast<const T*>(tensor.bytes.data());
    return std::vector<T>(data, data + tensor.num_elements());
  }
  ADD_FAILURE() << name;
  return {};
}

struct HeadReference {
  std::vector<TokenId> tokens;
  std::vector<std::vector<float>> logits;  // of each step
  float spread = 0;
};

inline HeadReference read_head_reference(const std::filesystem::path& folder) {
  const auto file = SafetensorsFile::open(folder / "reference.safetensors");
  EXPECT_TRUE(file) << file.error().to_string();
  HeadReference out;
  for (const int32_t id : tensor_values<int32_t>(*file, "tokens")) out.tokens.push_back(id);
  for (int32_t step = 0; step < kHeadSteps; ++step) {
    out.logits.push_back(tensor_values<float>(*file, "logits_" + std::to_string(step)));
  }
  const auto [least, most] = std::ranges::minmax(out.logits[0]);
  out.spread = most - least;
  return out;
}

// One sequence through the model and its head.
class HeadRun {
 public:
  explicit HeadRun(Model& model)
      : model_(model), rng_(3), kv_(model.info(), KvType::kFloat32, 4, 256, rng_) {}

  // The next `count` tokens, and a draft token behind them; then more, each behind the text's own
  // token. Returns the logits of each of `steps` draft tokens. 0: no row is wanted.
  std::vector<std::vector<float>> add(const std::vector<TokenId>& text, int32_t count,
                                      int32_t steps) {
    ForwardBatch batch = batch_of(done_, count);
    batch.entries[0].sample = steps > 0;
    for (int32_t i = 0; i < count; ++i) batch.token_ids.push_back(text.at(at(done_ + i)));
    const auto sink = [](int32_t, int32_t, std::span<const float>) {};
    static_cast<void>(model_.forward(batch, batch.token_ids, kv_.view(), sink));
    DraftHead& head = *model_.draft_head();
    for (int32_t i = 0; i < count; ++i) batch.token_ids[at(i)] = text.at(at(done_ + i + 1));
    std::vector<int32_t> rows(at(count));
    std::iota(rows.begin(), rows.end(), 0);
    std::vector<std::vector<float>> out;
    done_ += count;
    EXPECT_EQ(head.draft(batch, rows, kv_.view()).size(), steps > 0 ? 1u : 0u);
    if (steps == 0) return out;
    out.emplace_back(head.logits().begin(), head.logits().end());
    for (int32_t step = 1; step < steps; ++step) {
      ForwardBatch next = batch_of(done_ - 1 + step, 1);
      next.token_ids.push_back(text.at(at(done_ + step)));
      EXPECT_EQ(head.draft_next(next, std::vector<int32_t>{0}, kv_.view()).size(), 1u);
      out.emplace_back(head.logits().begin(), head.logits().end());
    }
    return out;
  }

 private:
  static size_t at(int32_t index) { return static_cast<size_t>(index); }

  ForwardBatch batch_of(int32_t begin, int32_t count) {
    ForwardBatch batch;
    const int32_t num_pages = (begin + count + 3) / 4;
    while (std::ssize(pages_) < num_pages) pages_.push_back(kv_.take_page());
    batch.page_tables = pages_;
    batch.entries.push_back({.slot = 0,
                             .num_query_tokens = count,
                             .prefix_len = begin,
                             .num_pages = num_pages,
                             .sample = true});
    for (int32_t i = 0; i < count; ++i) batch.positions.push_back(begin + i);
    return batch;
  }

  Model& model_;
  Rng rng_;
  golden::KvMemory kv_;
  std::vector<PageId> pages_;
  int32_t done_ = 0;
};

inline float head_difference(std::span<const float> a, std::span<const float> b) {
  float worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    if (!(difference <= worst)) worst = difference;
  }
  return worst;
}

// Of the reference, behind so many of its tokens.
inline std::span<const float> expected_row(const HeadReference& reference, size_t step,
                                           int32_t num_tokens, size_t width) {
  return std::span(reference.logits[step])
      .subspan(static_cast<size_t>(num_tokens - 1) * width, width);
}

// Of every token of the reference in chunks of several sizes. tolerance: of the logits' spread.
inline void expect_head_logits(Model& model, const HeadReference& reference, float tolerance) {
  for (const int32_t chunk : {1, 3, 7, 32}) {
    HeadRun run(model);
    const auto rows = static_cast<int32_t>(reference.tokens.size()) - kHeadSteps;
    for (int32_t done = 0; done < rows;) {
      const int32_t count = std::min(chunk, rows - done);
      const auto logits = run.add(reference.tokens, count, kHeadSteps);
      done += count;
      for (size_t step = 0; step < logits.size(); ++step) {
        const auto expected = expected_row(reference, step, done, logits[step].size());
        EXPECT_LT(head_difference(logits[step], expected), tolerance * reference.spread)
            << "chunks of " << chunk << ", token " << done << ", step " << step;
      }
    }
  }
}

}  // namespace espalier
