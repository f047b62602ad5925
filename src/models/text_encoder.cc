#include "models/text_encoder.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "models/model_plan.h"

namespace espalier {
namespace {

void normalize(std::span<float> vector) {
  double sum = 0;
  for (const float v : vector) sum += double{v} * double{v};
  if (sum == 0) return;  // no direction
  const double scale = 1 / std::sqrt(sum);
  for (float& v : vector) v = static_cast<float>(v * scale);
}

// One row of several, [rows, width].
std::vector<float> pool(PoolingSpec::Kind kind, std::span<const float> rows, size_t width) {
  std::vector<float> out(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(width));
  const size_t count = rows.size() / width;
  if (kind != PoolingSpec::Kind::kMean && kind != PoolingSpec::Kind::kMax) return out;
  for (size_t row = 1; row < count; ++row) {
    const float* const from = rows.data() + row * width;
    for (size_t i = 0; i < width; ++i)
      out[i] = kind == PoolingSpec::Kind::kMean ? out[i] + from[i] : std::max(out[i], from[i]);
  }
  if (kind == PoolingSpec::Kind::kMean) {
    for (float& v : out) v /= static_cast<float>(count);
  }
  return out;
}

}  // namespace

TextRows rows_of(std::span<const EncoderText> texts, PoolingSpec::Kind kind) {
  TextRows out{.begins = {0}};
  for (const EncoderText& text : texts) {
    const int32_t begin = out.begins.back(), end = begin + static_cast<int32_t>(text.ids.size());
    out.begins.push_back(end);
    if (kind == PoolingSpec::Kind::kFirst) {
      out.wanted.push_back(begin);
    } else if (kind == PoolingSpec::Kind::kLast) {
      out.wanted.push_back(end - 1);
    } else {
      for (int32_t row = begin; row < end; ++row) out.wanted.push_back(row);
    }
  }
  return out;
}

TextEncoder::TextEncoder(DecoderSpec spec, TextHead head, bool pools_rows)
    : info_(describe_model(spec)),
      spec_(std::move(spec)),
      head_(std::move(head)),
      pools_rows_(pools_rows) {}

Result<std::vector<std::vector<float>>> TextEncoder::encode(std::span<const EncoderText> texts) {
  for (const EncoderText& text : texts) {
    ESP_CHECK(!text.ids.empty() && std::cmp_less_equal(text.ids.size(), spec_.context_length) &&
                  (text.types.empty() || text.types.size() == text.ids.size()),
              "a text of {} tokens and {} types", text.ids.size(), text.types.size());
  }
  const PoolingSpec::Kind kind = spec_.pooling->kind;
  const TextRows rows = rows_of(texts, kind);
  ESP_CHECK(rows.begins.back() <= step_tokens_max(), "{} tokens in a step", rows.begins.back());
  ESP_ASSIGN_OR_RETURN(std::span<const float> results, run(texts, rows));
  const bool one = kind == PoolingSpec::Kind::kFirst || kind == PoolingSpec::Kind::kLast ||
                   (pools_rows_ && kind != PoolingSpec::Kind::kEach);
  const size_t width = results.size() / (one ? texts.size() : rows.wanted.size());
  std::vector<std::vector<float>> out;
  for (const EncoderText& text : texts) {
    const size_t count = (one ? 1 : text.ids.size()) * width;
    out.push_back(finish(results.first(count)));
    results = results.subspan(count);
  }
  return out;
}

std::vector<float> TextEncoder::finish(std::span<const float> rows) const {
  const PoolingSpec& pooling = *spec_.pooling;
  const auto width = static_cast<size_t>(spec_.projector ? spec_.projector->layers.back().outputs
                                                         : spec_.hidden_size);
  if (pooling.kind == PoolingSpec::Kind::kEach) {
    std::vector<float> out(rows.begin(), rows.end());
    if (!pooling.normalize) return out;
    for (size_t at = 0; at < out.size(); at += width) normalize({out.data() + at, width});
    return out;
  }
  return head_.apply(pool(pooling.kind, rows, width));
}

}  // namespace espalier
