// Where a prompt's pictures stand: its placeholders become the keys of their pictures' rows. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/scheduler/scheduler.h"
#include "models/model.h"

namespace espalier {

struct EncodedImage {
  TokenId key = -1;  // SpanKeys'
  std::shared_ptr<const EncodedRows> rows;
};

// A prompt with as many placeholders in place of each as its picture has rows, as transformers'
// processors make it; num_rows: of each picture. A prompt that is expanded already stays as it is.
// kInvalidArgument where the placeholders are not those of the pictures.
Result<std::vector<TokenId>> expand_placeholders(std::vector<TokenId> prompt, TokenId placeholder,
                                                 std::span<const int32_t> num_rows);
// The same before pictures are read; kUnimplemented where their sizes decide about their rows.
Result<std::vector<TokenId>> expand_placeholders(std::vector<TokenId> prompt,
                                                 const ImagesInfo& info, int32_t num_images);

Status rows_depend_on_sizes();  // that failure

// Expands `prompt` and puts the keys of `images` in place of its placeholders, picture after
// picture. Fails as expand_placeholders() does; then `prompt` is undefined.
Result<std::shared_ptr<const PromptSpans>> place_images(const ImagesInfo& info,
                                                        std::span<const EncodedImage> images,
                                                        std::vector<TokenId>& prompt);

}  // namespace espalier
