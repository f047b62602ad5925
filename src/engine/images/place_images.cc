#include "engine/images/place_images.h"

#include <algorithm>
#include <numeric>

namespace espalier {
namespace {

// Whether each run of placeholders has the rows of whole pictures, in their order.
bool is_expanded(std::span<const TokenId> prompt, TokenId placeholder,
                 std::span<const int32_t> num_rows) {
  size_t next = 0;   // picture
  int32_t open = 0;  // rows that the last one still lacks
  for (const TokenId id : prompt) {
    if (id != placeholder) {
      if (open > 0) return false;
      continue;
    }
    if (open == 0 && next == num_rows.size()) return false;
    if (open == 0) open = num_rows[next++];
    --open;
  }
  return open == 0 && next == num_rows.size();
}

}  // namespace

Result<std::vector<TokenId>> expand_placeholders(std::vector<TokenId> prompt, TokenId placeholder,
                                                 std::span<const int32_t> num_rows) {
  if (is_expanded(prompt, placeholder, num_rows)) return prompt;
  const auto count = std::ranges::count(prompt, placeholder);
  const int64_t rows = std::accumulate(num_rows.begin(), num_rows.end(), int64_t{0});
  if (num_rows.empty()) {
    return fail(invalid_argument(
        "the prompt has {} placeholders of pictures (token {}) and the request no picture: send a "
        "picture for each placeholder, or take them out of the prompt",
        count, placeholder));
  }
  if (count != std::ssize(num_rows)) {
    return fail(invalid_argument(
        "the prompt has {} placeholders of pictures (token {}) and the request {} pictures: put "
        "one placeholder for each picture, or all {} as transformers' processor does",
        count, placeholder, num_rows.size(), rows));
  }
  std::vector<TokenId> expanded;
  expanded.reserve(prompt.size() + static_cast<size_t>(rows));
  size_t next = 0;
  for (const TokenId id : prompt) {
    const int32_t times = id == placeholder ? num_rows[next++] : 1;
    expanded.insert(expanded.end(), static_cast<size_t>(times), id);
  }
  return expanded;
}

Result<std::vector<TokenId>> expand_placeholders(std::vector<TokenId> prompt,
                                                 const ImagesInfo& info, int32_t num_images) {
  if (info.num_rows == 0 && num_images > 0) return fail(rows_depend_on_sizes());
  const std::vector<int32_t> num_rows(static_cast<size_t>(num_images), info.num_rows);
  return expand_placeholders(std::move(prompt), info.placeholder, num_rows);
}

Status rows_depend_on_sizes() {
  return error(StatusCode::kUnimplemented,
               "a picture of this model takes as many tokens as its size demands, which is known "
               "when it has been read: ask for no log-probabilities of the prompt "
               "(logprob_start_len) and no count of its tokens beside pictures");
}

Result<std::shared_ptr<const PromptSpans>> place_images(const ImagesInfo& info,
                                                        std::span<const EncodedImage> images,
                                                        std::vector<TokenId>& prompt) {
  std::vector<int32_t> num_rows;
  for (const EncodedImage& image : images) num_rows.push_back(image.rows->num_rows);
  ESP_ASSIGN_OR_RETURN(prompt, expand_placeholders(std::move(prompt), info.placeholder, num_rows));
  auto placed = std::make_shared<PromptSpans>();
  placed->placeholder = info.placeholder;
  int32_t shift = 0;  // from positions to rotary ones
  auto at = prompt.begin();
  for (const EncodedImage& image : images) {
    at = std::find(at, prompt.end(), info.placeholder);
    const auto begin = static_cast<int32_t>(at - prompt.begin());
    const PromptSpan& span = placed->spans.emplace_back(
        PromptSpan{.begin = begin, .rows = image.rows, .rotary = begin + shift});
    shift = span.rotary_shift();
    placed->have_grids |= image.rows->grid_columns > 0;
    at = std::fill_n(at, image.rows->num_rows, image.key);
  }
  return std::shared_ptr<const PromptSpans>(std::move(placed));
}

}  // namespace espalier
