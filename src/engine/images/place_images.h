// Where a prompt's pictures stand: its placeholders become the keys of their pictures' rows. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/scheduler/scheduler.h"
#include "models/model.h"

namespace espalier {

struct EncodedImage {
  TokenId key = -1;  // SpanKeys'
  std::shared_ptr<const EncodedRows> rows;
};

// How a picture's rows stand in a prompt.
struct PictureShape {
  int32_t num_rows = 0;
  int32_t line_rows = 0;  // EncodedRows'
  bool video = false;     // it has the video's placeholder
};

// A text with what its template writes for a picture as transformers' processors replace it before
// it becomes tokens (ImagesSpec::mark). kInvalidArgument where the marks are not as many as the
// pictures; time and memory are linear in the text.
Result<std::string> mark_pictures(std::string text, const ImagesInfo& info, size_t num_pictures);

// A prompt with as many placeholders in place of each as its picture has rows, with the tokens
// between its lines, as transformers' processors make it. A prompt that is expanded already stays
// as it is. kInvalidArgument where the placeholders are not those of the pictures.
Result<std::vector<TokenId>> expand_placeholders(std::vector<TokenId> prompt,
                                                 const ImagesInfo& info,
                                                 std::span<const PictureShape> pictures);
// The same before pictures are read; kUnimplemented where their sizes decide about their rows.
Result<std::vector<TokenId>> expand_placeholders(std::vector<TokenId> prompt,
                                                 const ImagesInfo& info, int32_t num_images);

Status rows_depend_on_sizes();  // that failure

// Expands `prompt` and puts the keys of `images` in place of its placeholders, picture after
// picture and video after video; of both kinds, whichever placeholder comes next. Fails as
// expand_placeholders() does; then `prompt` is undefined.
Result<std::shared_ptr<const PromptSpans>> place_images(const ImagesInfo& info,
                                                        std::span<const EncodedImage> images,
                                                        std::vector<TokenId>& prompt);

}  // namespace espalier
