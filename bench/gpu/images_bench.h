// Pictures on the GPU: the encoder alone, requests with pictures, text streams beside them, and a
// second question about the same picture.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "models/model.h"

namespace espalier::bench {

struct ImagesRow {
  std::string name;
  double value = 0;
  std::string unit;
};
using ReportImagesRow = std::function<void(const ImagesRow&)>;

struct ImagesBench {
  std::string
      config;  // a folder with config.json of a model that reads pictures; weights are drawn
  std::string dtype;
  std::string only;  // encoder, requests, streams, question; empty: all
  uint64_t seed = 1;
  bool quick = false;
};

Status run_images_bench(const ImagesBench& options, const ReportImagesRow& report);

}  // namespace espalier::bench
