#include "engine/images/place_images.h"

#include <algorithm>

#include "base/check.h"

namespace espalier {
namespace {

// Whether placeholders stand in runs whose lengths are multiples of a picture's rows.
bool is_expanded(std::span<const TokenId> prompt, const ImagesInfo& info) {
  int32_t run = 0;
  for (const TokenId id : prompt) {
    if (id != info.placeholder && run % info.num_rows != 0) return false;
    run = id == info.placeholder ? run + 1 : 0;
  }
  return run % info.num_rows == 0;
}

}  // namespace

Result<std::vector<TokenId>> expand_placeholders(std::vector<TokenId> prompt,
                                                 const ImagesInfo& info, int32_t num_images) {
  const int64_t count = std::ranges::count(prompt, info.placeholder);
  const int64_t rows = int64_t{num_images} * info.num_rows;
  if (count == rows && is_expanded(prompt, info)) return prompt;
  if (count != num_images) {
    return fail(invalid_argument(
        "the prompt has {} placeholders of pictures (token {}) and the request {} pictures: put "
        "one placeholder for each picture, or {} as transformers' processor does",
        count, info.placeholder, num_images, info.num_rows));
  }
  std::vector<TokenId> expanded;
  expanded.reserve(prompt.size() + static_cast<size_t>(rows));
  for (const TokenId id : prompt) {
    const int32_t times = id == info.placeholder ? info.num_rows : 1;
    expanded.insert(expanded.end(), static_cast<size_t>(times), id);
  }
  return expanded;
}

Result<std::shared_ptr<const PromptSpans>> place_images(const ImagesInfo& info,
                                                        std::span<const EncodedImage> images,
                                                        std::vector<TokenId>& prompt) {
  ESP_ASSIGN_OR_RETURN(
      prompt, expand_placeholders(std::move(prompt), info, static_cast<int32_t>(images.size())));
  auto placed = std::make_shared<PromptSpans>();
  placed->placeholder = info.placeholder;
  auto at = prompt.begin();
  for (const EncodedImage& image : images) {
    ESP_CHECK(image.rows->num_rows == info.num_rows);
    at = std::find(at, prompt.end(), info.placeholder);
    placed->spans.push_back(
        {.begin = static_cast<int32_t>(at - prompt.begin()), .rows = image.rows});
    at = std::fill_n(at, info.num_rows, image.key);
  }
  return std::shared_ptr<const PromptSpans>(std::move(placed));
}

}  // namespace espalier
