// Encoders of texts on the GPU: steps of the encoder alone, an engine with many texts, and a query
// that is scored with many passages.
#pragma once

#include "images_bench.h"

namespace espalier::bench {

struct TextsBench {
  std::string config;  // a folder with config.json of an encoder of texts; weights are drawn
  std::string dtype;
  std::string only;  // encoder, engine, rerank; empty: all
  uint64_t seed = 1;
  bool quick = false;
};

Status run_texts_bench(const TextsBench& options, const ReportImagesRow& report);

}  // namespace espalier::bench
