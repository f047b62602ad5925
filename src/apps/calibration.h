// The texts that `espalier models quantize` calibrates with, and what it reports of them.
// Thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/compressed_tensors.h"
#include "checkpoint/rounded_matrices.h"
#include "models/calibration/calibrate.h"
#include "seams/vocab_view.h"
#include "text/tokenizer/tokenizer.h"

namespace espalier::apps {

struct CalibrationOptions {
  std::filesystem::path file;  // empty: no calibration
  int32_t samples = 128;
  int32_t length = 512;     // tokens of a sample, at most
  int32_t num_threads = 0;  // 0: one for each core
};

// Texts as tokens: of a .jsonl file each line, a string or an object with a "text", cut at
// `length`; of another file its text, cut into pieces. Of more than `samples` those at even
// distances. kInvalidArgument names the file and the line that is no such text, or says how many
// tokens are missing.
Result<std::vector<std::vector<TokenId>>> read_calibration_texts(const Tokenizer& tokenizer,
                                                                 const CalibrationOptions& options);

// Rounds the matrices of a folder's model by the inputs that they have in the texts.
Result<std::vector<calibration::LayerReport>> calibrate_folder(const std::filesystem::path& source,
                                                               const Checkpoint& checkpoint,
                                                               const CompressedFormat& format,
                                                               const CalibrationOptions& options,
                                                               RoundedMatrices& to);

std::string calibration_text(const std::vector<calibration::LayerReport>& layers);

}  // namespace espalier::apps
