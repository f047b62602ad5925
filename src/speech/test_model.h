// Whisper models for this room's tests: those that tools/goldens/make_speech_goldens.py makes.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/json_object.h"
#include "media/drawn_sound.h"
#include "media/mel.h"
#include "speech/whisper_config.h"
#include "speech/whisper_decoder.h"
#include "speech/whisper_encoder.h"
#include "tensor/work_pool.h"

namespace espalier::speech::test {

inline std::filesystem::path golden_folder(const std::string& name) {
  return std::filesystem::path("tests/golden/speech") / name;
}

// What transformers computed: see the tool.
struct Reference {
  MelSpectrogram mel;
  std::vector<float> source, logits;
  std::vector<TokenId> tokens;
};
Reference read_reference(const std::string& name);

using espalier::test::drawn_samples;

// A request of cases.json, and transformers' answer.
struct SpeechCase {
  int64_t samples = 0;
  bool timestamps = false, translate = false;
  std::string language, prompt, detected, text;
  std::vector<TokenId> tokens;
  std::vector<std::vector<double>> segments;  // start, end
};
std::vector<SpeechCase> read_cases(const std::string& name);

// Encoder and decoder of a golden model, with its parts changed before they are used.
struct LoadedModel {
  using Change = std::function<void(WhisperSizes&, WhisperWeights&)>;
  static std::unique_ptr<LoadedModel> load(const std::string& name, const Change& change = nullptr,
                                           std::string_view dtype = "auto", int32_t num_slots = 4);

  WorkPool pool{2};
  std::unique_ptr<kernels::CpuBackend> backend;
  WhisperSizes sizes;
  WhisperWeights weights;
  std::unique_ptr<WhisperEncoder> encoder;
  std::unique_ptr<WhisperDecoder> decoder;
};

}  // namespace espalier::speech::test
