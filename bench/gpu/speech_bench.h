// Speech to text on the GPU: windows encoded, tokens decoded, and seconds of sound a second of one
// and of many streams.
#pragma once

#include <string>

#include "base/status.h"
#include "images_bench.h"

namespace espalier::bench {

struct SpeechBench {
  std::string config;  // a folder with config.json of a Whisper model; weights are drawn
  std::string dtype;   // auto: bfloat16; or float32
  uint64_t seed = 1;
  bool quick = false;
};

Status run_speech_bench(const SpeechBench& options, const ReportImagesRow& report);

}  // namespace espalier::bench
